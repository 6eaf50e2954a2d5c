"""The completions that wait for a volunteer, those that wait longest first."""

import heapq
import itertools
from dataclasses import dataclass, field

from contracts.inference import SamplingParameters, TokenDelta

Group = tuple[float, int, tuple[int, ...]]  # of completions that may be in one task


@dataclass(eq=False)
class Wanted:
    """A completion that is wanted. It keeps its place in the queue, and its key, whoever makes it.

    key: of its draws. result: set once, by the gateway: a delta, or an error.
    """

    prompt: list[int]
    sampling: SamplingParameters
    key: bytes
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


class CompletionQueue:
    """A queue that gives completions of one group at a time. A completion that is put back is first again."""

    def __init__(self) -> None:
        self._groups: dict[Group, list[tuple[int, Wanted]]] = {}

    def put(self, wanted: Wanted) -> None:
        heapq.heappush(self._groups.setdefault(wanted.group, []), (wanted.number, wanted))

    def take(self, most: int) -> list[Wanted]:
        """Returns up to `most` completions of the group that waits longest, and removes them."""
        self._drop_given_up()
        if not self._groups:
            return []
        group = min(self._groups, key=lambda each: self._groups[each][0][0])
        taken: list[Wanted] = []
        heap = self._groups[group]
        while heap and len(taken) < most:
            _, wanted = heapq.heappop(heap)
            if wanted.is_open:
                taken.append(wanted)
        if not heap:
            del self._groups[group]
        return taken

    def __len__(self) -> int:
        return sum(wanted.is_open for heap in self._groups.values() for _, wanted in heap)

    def __bool__(self) -> bool:
        self._drop_given_up()
        return bool(self._groups)

    def _drop_given_up(self) -> None:
        """Removes the first ones of each group that nobody waits for."""
        for group, heap in [*self._groups.items()]:
            while heap and not heap[0][1].is_open:
                heapq.heappop(heap)
            if not heap:
                del self._groups[group]

    def drain(self) -> list[Wanted]:
        """Removes and returns all completions."""
        every = [wanted for heap in self._groups.values() for _, wanted in heap]
        self._groups.clear()
        return every
