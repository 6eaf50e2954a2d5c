"""The completions that wait for a volunteer, those that wait longest first."""

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from contracts.inference import SamplingParameters, TokenDelta

Group = tuple[float, int, tuple[int, ...]]  # of completions that may be in one task


@dataclass(eq=False)
class Wanted:
    """A completion that is wanted. It keeps its place in the queue, and its key, whoever makes it.

    key: of its draws. oldest: the oldest version that may sample it. version: with which it was given first;
    while that gets tasks, it is given with no other. tried: who did not deliver it. refused: whose completion
    was refused. failures: of its audits. result: set once, by the gateway: a delta, or an error.
    """

    prompt: list[int]
    sampling: SamplingParameters
    key: bytes
    oldest: int = 0
    version: int | None = None
    tried: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    failures: int = 0
    number: int = field(default_factory=itertools.count().__next__)  # smaller: waits longer
    result: TokenDelta | Exception | None = None
    given_up: bool = False  # True if nobody waits for it any more

    @property
    def is_open(self) -> bool:
        return self.result is None and not self.given_up

    @property
    def group(self) -> Group:
        sampling = self.sampling
        return sampling.temperature, sampling.max_tokens, sampling.stop_token_ids


Suits = Callable[[Wanted], bool]


class CompletionQueue:
    """A queue that gives completions of one group at a time. A completion that is put back is first again."""

    def __init__(self) -> None:
        self._groups: dict[Group, list[tuple[int, Wanted]]] = {}

    def put(self, wanted: Wanted) -> None:
        heapq.heappush(self._groups.setdefault(wanted.group, []), (wanted.number, wanted))

    def discard(self, wanted: Wanted) -> None:
        """Removes a completion, if it is queued."""
        left = [each for each in self._groups.pop(wanted.group, []) if each[1] is not wanted]
        if left:
            heapq.heapify(left)
            self._groups[wanted.group] = left

    def has(self, suits: Suits) -> bool:
        """Returns True if a completion suits."""
        return next(self._suitable(suits), None) is not None

    def first(self, suits: Suits) -> Wanted | None:
        """Returns the completion that waits longest of those that suit, or None."""
        found = min(self._suitable(suits), default=None)
        return found and found[1]

    def take(self, most: int, suits: Suits) -> list[Wanted]:
        """Removes and returns up to `most` completions that suit, of the group of the first one."""
        first = self.first(suits)
        if first is None:
            return []
        taken: list[Wanted] = []
        left: list[tuple[int, Wanted]] = []
        for number, wanted in sorted(self._groups.pop(first.group)):
            if not wanted.is_open:
                continue
            if suits(wanted) and len(taken) < most:
                taken.append(wanted)
            else:
                left.append((number, wanted))
        if left:
            self._groups[first.group] = left  # sorted, and so a heap
        return taken

    def _suitable(self, suits: Suits) -> Iterator[tuple[int, Wanted]]:
        for heap in self._groups.values():
            yield from (each for each in heap if each[1].is_open and suits(each[1]))

    def __len__(self) -> int:
        return sum(wanted.is_open for heap in self._groups.values() for _, wanted in heap)
