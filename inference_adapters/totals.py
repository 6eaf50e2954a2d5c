"""The counters of a server since its start, for `/metrics`."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field

from contracts.inference import TokenDelta, WeightUpdateStatus
from contracts.metrics import HTTP_REQUESTS, UPDATES


@dataclass
class Totals:
    """The counters of one server. They only increase. Use them only in the server's event loop."""

    sampled_tokens: int = 0
    requests: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(HTTP_REQUESTS.always, 0)))
    updates: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(UPDATES.always, 0)))
    update_s: float = 0.0
    paused_s: float = 0.0

    def add_update(self, status: WeightUpdateStatus, took_s: float) -> None:
        """Counts a weight update that ended `took_s` seconds after its acceptance."""
        self.updates[status.state] += 1
        self.update_s += took_s
        self.paused_s += status.paused_s

    async def counted(
        self, deltas: AsyncIterator[tuple[int, TokenDelta]]
    ) -> AsyncIterator[tuple[int, TokenDelta]]:
        """Yields the deltas unchanged, and counts their tokens."""
        async with aclosing(deltas):
            async for index, delta in deltas:
                self.sampled_tokens += len(delta.token_ids)
                yield index, delta
