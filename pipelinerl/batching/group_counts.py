"""Counts trained and dropped groups since the process started, for the metrics. Pure state."""

from collections import Counter
from collections.abc import Sequence

from contracts.records import DropReason, MicroBatchRow, Rollout


class GroupCounts:
    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()  # groups, by reason
        self.failures: Counter[str] = Counter()  # rollouts, by status
        self._without_signal: Counter[str] = Counter()  # groups of equal rewards, solved or hopeless
        self._groups = 0
        self._sampled = 0  # tokens
        self._in_rows = 0  # tokens in the loss

    def sampled(self, group: Sequence[Rollout]) -> None:
        self._groups += 1
        self._sampled += sum(rollout.sampled_tokens for rollout in group)
        self.failures.update(rollout.status for rollout in group if rollout.failed)

    def drop(self, group: Sequence[Rollout], reason: str) -> None:
        """Counts a group of equal rewards as solved or hopeless. The caller increments `dropped`."""
        if reason != DropReason.ZERO_ADVANTAGE:
            return
        successes = {rollout.success for rollout in group if not rollout.failed}
        self._without_signal["solved"] += successes == {1.0}
        self._without_signal["hopeless"] += successes == {0.0}

    def train(self, row: MicroBatchRow) -> None:
        self._in_rows += sum(s.tokens_in_loss for rank in row.micro_batches for s in rank)

    def metrics(self) -> dict[str, float]:
        return {
            **{f"dropped_{reason}": count for reason, count in self.dropped.items()},
            **{f"zero_advantage_{kind}": count for kind, count in self._without_signal.items()},
            "groups": self._groups,
            "sampled_tokens": self._sampled,
            "useful_tokens": self._in_rows,
            "useful_share": self._in_rows / self._sampled if self._sampled else 0.0,
        }
