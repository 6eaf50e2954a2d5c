"""Sums vectors over the members of a ring, as coded messages that are bitwise equal on every member.

Each member sends 2 (N - 1) / N of a coded vector to its right neighbour. In the reduce-scatter, each member
adds to a part of the vector and codes it again, until it is complete at the last member. In the all-gather,
the last code is sent around unchanged. All members, including the last one, decode these messages. Must not
know what the vectors are.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch

from extensions.islands.quantise import BLOCK, Quantiser

CHUNK = 2**20  # elements of one message: 4 MiB of float32
LEAST_WAIT_S = 0.001
Span = tuple[int, int]  # begin and end of consecutive elements


class LinkError(RuntimeError):
    """An exchange failed, because a member has ended or does not answer. The group must not be used again."""


class Work(Protocol):
    def wait(self, timeout: timedelta) -> object:
        """Waits until the message is sent or has arrived. Raises RuntimeError or OSError."""


class Group(Protocol):
    """The interface of a torch process group for CPU tensors."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        """Starts to send one tensor to a member."""

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work:
        """Starts to receive one tensor from a member, under the tag."""


@dataclass(frozen=True)
class Partition:
    """The division of a vector into one part per member of the ring, and of each part into chunks.

    Parts and chunks start at multiples of 256 elements, the block of a quantiser. A part may be empty.
    """

    elements: int
    parts: int
    chunk: int = CHUNK

    def chunks(self, part: int) -> list[Span]:
        """Returns the spans of a part's chunks, in order."""
        blocks = -(-self.elements // BLOCK)
        begin = BLOCK * (part * blocks // self.parts)
        end = min(BLOCK * ((part + 1) * blocks // self.parts), self.elements)
        return [(first, min(first + self.chunk, end)) for first in range(begin, end, self.chunk)]

    def spans(self) -> Iterator[Span]:
        """Returns the chunks of all parts, in the order of the elements."""
        return (span for part in range(self.parts) for span in self.chunks(part))


class Transfer:
    """A message in transfer, whose memory is in use until `wait` returns."""

    def __init__(self, message: torch.Tensor, work: Work | None = None, deadline: float = 0.0):
        """work: the transfer; None = the message is complete. deadline: monotonic time."""
        self._message = message
        self._work = work
        self._deadline = deadline

    def wait(self) -> torch.Tensor:
        """Returns the message once it is sent or has arrived. Raises LinkError."""
        if self._work:
            left_s = max(self._deadline - time.monotonic(), LEAST_WAIT_S)
            try:
                self._work.wait(timedelta(seconds=left_s))
            except (RuntimeError, OSError) as error:
                raise LinkError(str(error)) from error
            self._work = None
        return self._message


class Ring:
    """A member of a ring, for successive exchanges over the same group."""

    def __init__(self, group: Group | None, rank: int, size: int, within_s: float):
        """group: None for a ring of one member. within_s: longest time of all exchanges."""
        self._deadline = time.monotonic() + within_s
        self.sent = 0  # bytes
        self._group = group
        self._members = list(range(size))  # ranks in the group
        self._rank = rank
        self._size = size
        self._sends = 0
        self._receives = 0

    def continue_with(self, members: list[int], within_s: float) -> None:
        """Continues with a subset of the members, by index, which includes this one. All must call it
        equally.

        within_s: longest time of all further exchanges.
        """
        self._deadline = time.monotonic() + within_s
        self._rank = members.index(self._rank)
        self._size = len(members)
        self._members = [self._members[index] for index in members]

    def sum(
        self, own: Callable[[int, int], torch.Tensor], partition: Partition, quantiser: Quantiser
    ) -> list[torch.Tensor]:
        """Returns the coded sum: one message per span of the partition, equal on every member.

        own: (begin, end) -> this member's elements in new float32 CPU memory; called once per element. The
        next message is coded during a transfer. Raises LinkError if a member fails.
        """
        arriving: list[Transfer] = []
        for step in range(self._size):
            arrived = arriving
            part = (self._rank - step) % self._size
            last = step == self._size - 1
            arriving = [] if last else self._receive(partition, part - 1, quantiser)
            coded = []
            for index, (begin, end) in enumerate(partition.chunks(part)):
                values = own(begin, end)
                if step:
                    values += quantiser.decode(arrived[index].wait(), end - begin)
                message = quantiser.encode(values)
                coded.append(Transfer(message) if last else self._send(message))
            if not last:
                finish(coded)
        return self._all_messages(coded, partition, quantiser)

    def _all_messages(
        self, complete: list[Transfer], partition: Partition, quantiser: Quantiser
    ) -> list[torch.Tensor]:
        """Returns the messages of all parts, which are sent around from the part that is complete here."""
        parts = {(self._rank + 1) % self._size: complete}
        for step in range(self._size - 1):
            part = (self._rank + 1 - step) % self._size
            before = (part - 1) % self._size
            parts[before] = self._receive(partition, before, quantiser)
            finish([self._send(transfer.wait()) for transfer in parts[part]])
        return [transfer.wait() for part in range(self._size) for transfer in parts[part]]

    def gather(self, record: bytes) -> list[bytes]:
        """Returns the records of all members, in order. They must have equal lengths. Raises LinkError."""
        records = {self._rank: record}
        for step in range(self._size - 1):
            arriving = self._begin(torch.empty(len(record), dtype=torch.uint8))
            newest = bytearray(records[(self._rank - step) % self._size])
            sending = self._send(torch.frombuffer(newest, dtype=torch.uint8))
            records[(self._rank - step - 1) % self._size] = bytes(arriving.wait().tolist())
            finish([sending])
        return [records[rank] for rank in range(self._size)]

    def _receive(self, partition: Partition, part: int, quantiser: Quantiser) -> list[Transfer]:
        """Starts to receive the messages of a part from the left."""
        sizes = [quantiser.size(end - begin) for begin, end in partition.chunks(part % self._size)]
        return [self._begin(torch.empty(size, dtype=torch.uint8)) for size in sizes]

    def _begin(self, message: torch.Tensor) -> Transfer:
        left = self._members[(self._rank - 1) % self._size]
        work = self._linked(self._group.recv, message, left, self._receives)
        self._receives += 1
        return Transfer(message, work, self._deadline)

    def _send(self, message: torch.Tensor) -> Transfer:
        right = self._members[(self._rank + 1) % self._size]
        work = self._linked(self._group.send, message, right, self._sends)
        self._sends += 1
        self.sent += message.numel()
        return Transfer(message, work, self._deadline)

    def _linked(self, move: Callable[..., Work], message: torch.Tensor, rank: int, tag: int) -> Work:
        if time.monotonic() > self._deadline:
            raise LinkError("it takes longer than timeout_s")
        try:
            return move([message], rank, tag)
        except (RuntimeError, OSError) as error:
            raise LinkError(str(error)) from error


def finish(transfers: list[Transfer]) -> None:
    for transfer in transfers:
        transfer.wait()
