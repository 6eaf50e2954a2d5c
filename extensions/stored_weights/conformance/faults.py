"""Faults of a source's responses. Each fault is set for some files of a source."""

from collections.abc import Callable
from dataclasses import dataclass

MORE = 1024  # excess bytes of a body that is too long


def _as_it_is(data: bytes) -> bytes:
    return data


def _length_of(data: bytes) -> int | None:
    return len(data)


@dataclass(frozen=True)
class Fault:
    """The difference of a response from the right one."""

    what: str
    body: Callable[[bytes], bytes] = _as_it_is  # returns the body, given the right file
    states: Callable[[bytes], int | None] = _length_of  # returns the Content-Length, given the body
    status: int = 200
    location: str | None = None
    answers: bool = True  # False if there is no response
    after: float = 1.0  # share of the body, but at least a byte, after which the source stops sending
    pace: float | None = None  # bytes per second


def _one_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _without_end(data: bytes) -> bytes:
    return data[: len(data) - 1 - len(data) // 8]


def _longer(data: bytes) -> bytes:
    return data + bytes(MORE)


ONE_BIT = Fault("one bit of each file differs", _one_bit)
TRUNCATED = Fault("the files end early", _without_end)
CUT_OFF = Fault("connections end early", _without_end, lambda data: len(data) + 1 + len(data) // 7)
LONGER = Fault("the files are longer, and no length is stated", _longer, lambda data: None)
WRONG_LENGTH = Fault("another Content-Length is stated", states=lambda data: len(data) + 7)
MISSING = Fault("the files are missing", lambda data: b"", status=404)
FAILING = Fault("each answer is 500", lambda data: b"", status=500)
MUTE = Fault("no response begins", answers=False)
SILENT = Fault("one byte comes, and no other", after=0.0)
STALLED = Fault("transfers stop in the middle", after=0.5)


def redirect(url: str) -> Fault:
    """Returns the fault of a source that redirects to `url`."""
    return Fault("the source redirects elsewhere", lambda data: b"", status=302, location=url)


def another(data: bytes) -> Fault:
    """Returns the fault of a source that sends other content."""
    return Fault("another file lies under the name", lambda right: data)


def trickle(bytes_per_s: float) -> Fault:
    """Returns the fault of a source that sends slowly."""
    return Fault("bytes trickle", pace=bytes_per_s)
