"""What a source may do wrong with a file. Each fault is given to a source for some of its files."""

from collections.abc import Callable
from dataclasses import dataclass

MORE = 1024  # bytes that a longer body has too many


def _as_it_is(data: bytes) -> bytes:
    return data


def _length_of(data: bytes) -> int | None:
    return len(data)


@dataclass(frozen=True)
class Fault:
    """How a response differs from the right one."""

    what: str
    body: Callable[[bytes], bytes] = _as_it_is  # of the right file
    states: Callable[[bytes], int | None] = _length_of  # Content-Length of that body; None: none is stated
    status: int = 200
    location: str | None = None
    answers: bool = True  # whether a response begins at all
    after: float = 1.0  # the share of the body, a byte at least, after which the source falls silent
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
    """Returns the fault of a source that has another file under the name."""
    return Fault("another file lies under the name", lambda right: data)


def trickle(bytes_per_s: float) -> Fault:
    """Returns the fault of a source that sends so few bytes per second."""
    return Fault("bytes trickle", pace=bytes_per_s)
