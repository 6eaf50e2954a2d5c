"""Finished groups -> the rows of a step: advantages, filters, staleness, packing. Pure, no I/O.

The group is the unit: it enters a step whole or is dropped with a reason. A member that failed stays
in its group without tokens and without part in the baseline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from contracts.records import DropReason, MicroBatchRow, Rollout, TrainingSequence
from pipelinerl.packing import Fifo
from pipelinerl.sequences import training_sequences
from pipelinerl.staleness import StalePolicy

GroupFilter = Callable[[Sequence[Rollout], np.ndarray], DropReason | None]
MIN_GOOD_MEMBERS = 2  # fewer give no baseline


class Groups:
    """Collects rollouts until their group is whole; its members are in their own order then."""

    def __init__(self, group_size: int):
        self._group_size = group_size
        self._members: dict[int, list[Rollout]] = {}

    def add(self, rollout: Rollout) -> list[Rollout] | None:
        members = self._members.setdefault(rollout.group_id, [])
        members.append(rollout)
        if len(members) < self._group_size:
            return None
        return sorted(self._members.pop(rollout.group_id), key=lambda member: member.rollout_id)


@dataclass(frozen=True)
class Outcome:
    """What became of a group: rows that left with it, or the reason why it was dropped."""

    rows: list[MicroBatchRow]
    dropped: DropReason | None = None


class StepFormation:
    """Puts whole groups into steps of exactly `batch_size` rollouts, first come, first served.

    `hold`: rows leave only when their step is full, its groups in the order of their draws. Where the same
    groups come in another order, the same rows leave.
    """

    def __init__(
        self,
        advantage: Callable[[np.ndarray], np.ndarray],
        filters: Sequence[GroupFilter],
        stale: StalePolicy,
        packing: Fifo,
        batch_size: int,
        hold: bool = False,
        first_step: int = 0,
    ):
        self._advantage, self._filters, self._stale = advantage, filters, stale
        self._packing, self._batch_size, self._hold = packing, batch_size, hold
        self.step = first_step
        self.open_groups: list[int] = []  # of the step being formed
        self._rollouts = 0
        self._held: list[tuple[int, list[list[TrainingSequence]]]] = []  # (draw, sequences by rollout)

    def add(self, group: list[Rollout]) -> Outcome:
        """Take a whole group, failed members included."""
        good = [rollout for rollout in group if not rollout.failed]
        if len(good) < MIN_GOOD_MEMBERS:
            return Outcome([], DropReason.FAILED)
        advantages = self._advantage(np.array([r.reward for r in good], dtype=np.float32))
        for group_filter in self._filters:
            if reason := group_filter(good, advantages):
                return Outcome([], reason)
        sequences = [training_sequences(r, float(a)) for r, a in zip(good, advantages, strict=True)]
        if any(self._stale.drops(of_rollout, self.step) for of_rollout in sequences):
            return Outcome([], DropReason.STALE)
        self._held.append((group[0].draw, sequences))
        self.open_groups.append(group[0].group_id)
        self._rollouts += len(group)
        full = self._rollouts >= self._batch_size
        rows = self._pack_held() if full or not self._hold else []
        return Outcome(rows + ([self._close()] if full else []))

    def _pack_held(self) -> list[MicroBatchRow]:
        rows = []
        for _, sequences in sorted(self._held, key=lambda held: held[0]):
            for of_rollout in sequences:
                masked = [self._stale.mask(sequence, self.step) for sequence in of_rollout]
                row = self._packing.add([s for s, _ in masked], sum(count for _, count in masked))
                rows += [row] if row else []
        self._held = []
        return rows

    def _close(self) -> MicroBatchRow:
        row = self._packing.close_step(self.open_groups)
        self.step, self.open_groups, self._rollouts = self.step + 1, [], 0
        return row
