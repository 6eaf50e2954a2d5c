"""The messages between rollouts and the judging service, in frames of bounded length."""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

LONGEST_FRAME = 32 << 20  # bytes
LONGEST_TEXT = 4 << 20  # characters; a longer text is not sent
LENGTH = struct.Struct(">I")


class Judgement(msgspec.Struct, frozen=True):
    """A verifier's judgement on one answer.

    outcome: right, wrong, no_answer, undecided:<why>, or another word of the verifier. <why> is the limit
        that the answer exceeded: time, memory, length, processes, files or output. It is `meaning` if the
        verdict depends on the problem.
    components: parts of the reward by name; their sum is the reward.
    said: what a hosted verifier tells its domain besides.
    reason: what was found, for people: the answer that was read, the test that failed.
    """

    reward: float
    success: bool
    outcome: str
    components: dict[str, float] = {}
    metrics: dict[str, float] = {}
    said: str = ""
    reason: str = ""

    @property
    def word(self) -> str:
        """The outcome without its reason."""
        return self.outcome.partition(":")[0]


def undecided(why: str, reason: str = "") -> Judgement:
    """Returns the judgement on an answer that exceeded the limit `why`."""
    return Judgement(0.0, False, f"undecided:{why}", reason=reason)


class Encoded(bytes):
    """A verifier's input that is sent as it is, because a hosted verifier reads it in the service."""


@dataclass(frozen=True)
class Renewed:
    """A hosted verifier's input that is made anew each time that the question is sent."""

    make: Callable[[], Encoded]


class Question(msgspec.Struct, frozen=True, tag=True):
    """One answer to judge. task: the verifier's input, pickled by the client; only a worker unpickles it.

    The task of a hosted verifier is `Encoded` instead.
    """

    number: int
    verifier: str
    task: bytes
    text: str


class Abandoned(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for the reply to the question with this number."""

    number: int


class Reply(msgspec.Struct, frozen=True):
    """The judgement on a question, or the reason of its failure. is_fault: True if the verifier failed."""

    number: int
    judgement: Judgement | None = None
    failed: str = ""
    is_fault: bool = False


class FrameError(Exception):
    """The other side sent an invalid frame, or a message is too long for one."""


def frame(message: msgspec.Struct) -> bytes:
    """Returns the frame of a message. Raises FrameError if it is too long."""
    body = msgspec.msgpack.encode(message)
    if len(body) > LONGEST_FRAME:
        raise FrameError(f"a frame of {len(body)} bytes; at most {LONGEST_FRAME} are sent")
    return LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, kind: Any) -> Any:
    """Returns the next message, of this type, or None at the end of the stream. Raises FrameError."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > LONGEST_FRAME:
            raise FrameError(f"a frame of {length} bytes is announced; at most {LONGEST_FRAME} are read")
        return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the stream ended inside a frame") from error
        return None
    except msgspec.MsgspecError as error:
        raise FrameError(f"a frame holds no message: {error}") from error
