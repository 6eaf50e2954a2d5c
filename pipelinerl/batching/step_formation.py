"""Forms steps from finished groups: advantages, filters, staleness, weights, packing. Pure, no I/O.

A group joins a step completely, or is dropped with a reason. A failed member counts as a rollout of its
group, but has no tokens and is not in the baseline.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from contracts.records import DropReason, MicroBatchRow, Rollout, TrainingSequence
from contracts.token_fields import TokenField, TokenFieldError, check_token_fields
from pipelinerl.advantages import UnfitRewardsError
from pipelinerl.batching.credit import TurnAdvantages
from pipelinerl.batching.sequences import chains_of
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.weighing import BufferedGroup, BufferedRollout, Weighed, Weighing
from pipelinerl.filters import GroupFilter
from pipelinerl.normalisations import Normalisation
from pipelinerl.packing import Fifo


class Groups:
    """Collects rollouts until their group is complete."""

    def __init__(self, group_size: int):
        self._group_size = group_size
        self._members: dict[int, list[Rollout]] = {}

    def collect(self, rollout: Rollout) -> list[Rollout] | None:
        """Returns the group if this rollout completes it, else None.

        Members are sorted by `rollout_id` as text ("17-10" before "17-2"), independent of their arrival.
        """
        members = self._members.setdefault(rollout.group_id, [])
        members.append(rollout)
        if len(members) < self._group_size:
            return None
        return sorted(self._members.pop(rollout.group_id), key=lambda member: member.rollout_id)


@dataclass(frozen=True)
class Outcome:
    """The result of adding a group: the rows that it completed, or the reason why it was dropped.

    why: details of the reason, or "".
    """

    rows: list[MicroBatchRow]
    dropped: str | None = None
    why: str = ""


class StepFormation:
    """Forms steps of exactly `batch_size` rollouts from complete groups, in the order of their arrival.

    buffer_whole_step: True to return rows only when their step is full, with groups in the order of their
        draws, independent of arrival. Implied by `over_step` and by a normalisation over the step.
    over_step: returns the final advantages of a step's turns.
    least_members: smallest number of members without a failure in a group.
    longest_rollout: largest number of tokens of a rollout in all its sequences, or in each one if the packing
        splits rollouts; None = unlimited.
    """

    def __init__(
        self,
        advantages: Callable[[Sequence[Rollout]], TurnAdvantages],
        filters: Sequence[GroupFilter],
        stale: StalePolicy,
        sequences: Callable[[Rollout, np.ndarray], list[TrainingSequence]],
        normalisation: Normalisation,
        packing: Fifo,
        batch_size: int,
        buffer_whole_step: bool = False,
        first_step: int = 0,
        token_fields: Mapping[str, TokenField] = {},
        over_step: Callable[[np.ndarray], np.ndarray] | None = None,
        least_members: int = 2,
        longest_rollout: int | None = None,
    ):
        self._longest_rollout = longest_rollout
        self._least_members = least_members
        self._token_fields = token_fields
        self._advantages = advantages
        self._filters = filters
        self._stale = stale
        self._sequences = sequences
        self._weighing = Weighing(normalisation, stale, batch_size, over_step)
        self._packing = packing
        self._batch_size = batch_size
        self._buffer_whole_step = buffer_whole_step or normalisation.whole_step or over_step is not None
        self.step = first_step
        self.open_groups: list[int] = []  # groups in the step being formed
        self.masked: Counter[str] = Counter()  # rollouts that filters excluded from the loss, by reason
        self._open_masked: dict[str, list[str]] = {}  # reason -> rollouts of the open groups
        self._rollouts = 0
        self._buffered: list[BufferedGroup] = []

    def add_group(self, group: list[Rollout]) -> Outcome:
        """Adds a complete group, including its failed members."""
        good = [rollout for rollout in group if not rollout.failed]
        if len(good) < self._least_members:
            return Outcome([], DropReason.FAILED)
        if not all(map(self._carries_token_fields, good)):
            return Outcome([], DropReason.TOKEN_FIELDS)
        try:
            advantages = self._advantages(good)
        except UnfitRewardsError as error:
            return Outcome([], error.reason, str(error))
        masked = self._masked_by_filters(good, advantages)
        if isinstance(masked, str):
            return Outcome([], masked)
        in_loss = [
            self._buffered_rollout(r, a)
            for r, a in zip(good, advantages, strict=True)
            if r.rollout_id not in masked
        ]
        if why := self._too_long(in_loss):
            return Outcome([], DropReason.TOO_LONG, why)
        if any(self._stale.drops(rollout.sequences, self.step) for rollout in in_loss):
            return Outcome([], DropReason.STALE)
        for rollout_id, reason in masked.items():
            self._open_masked.setdefault(reason, []).append(rollout_id)
        self._buffered.append(BufferedGroup(group[0].draw, len(group), in_loss))
        self.open_groups.append(group[0].group_id)
        self._rollouts += len(group)
        full = self._rollouts >= self._batch_size
        rows = self._pack_buffered() if full or not self._buffer_whole_step else []
        return Outcome(rows + ([self._close()] if full else []))

    def _buffered_rollout(self, rollout: Rollout, advantages: np.ndarray) -> BufferedRollout:
        lengths = [len(completion.token_ids) for completion in rollout.completions]
        sequences = self._sequences(rollout, advantages)
        return BufferedRollout(sequences, advantages, lengths, chains_of(rollout.completions))

    def _carries_token_fields(self, rollout: Rollout) -> bool:
        """Returns True if the rollout has the declared fields. A resumed run may declare other ones."""
        try:
            for completion in rollout.completions:
                check_token_fields(self._token_fields, completion.token_fields, len(completion.token_ids))
        except TokenFieldError:
            return False
        return True

    def _too_long(self, rollouts: Sequence[BufferedRollout]) -> str:
        """Returns a message on the first rollout that is longer than a micro-batch, or ""."""
        for rollout in rollouts:
            of_parts = [sum(len(sequence.token_ids) for sequence in part) for part in self._parts(rollout)]
            tokens = max(of_parts, default=0)
            if self._longest_rollout is not None and tokens > self._longest_rollout:
                return (
                    f"rollout {rollout.sequences[0].rollout_id} has {tokens} tokens in "
                    f"{len(rollout.lengths)} turns, and a micro-batch at most {self._longest_rollout}: raise "
                    "packing.micro_batch_tokens, set packing.split_rollouts, or allow fewer turns"
                )
        return ""

    def _parts(self, rollout: BufferedRollout | Weighed) -> list[list[TrainingSequence]]:
        """Returns the sequences that must be in one micro-batch."""
        if getattr(self._packing, "split_rollouts", False):
            return [[sequence] for sequence in rollout.sequences]
        return [rollout.sequences]

    def _masked_by_filters(
        self, rollouts: Sequence[Rollout], advantages: TurnAdvantages
    ) -> dict[str, str] | str:
        """Returns the reasons of the rollouts that filters exclude, by id; one reason if they exclude all."""
        masked: dict[str, str] = {}
        for group_filter in self._filters:
            keeps = group_filter(rollouts, advantages)
            reason = str(group_filter.reason)
            removed = {r.rollout_id: reason for r, keep in zip(rollouts, keeps, strict=True) if not keep}
            masked = removed | masked
            if len(masked) == len(rollouts):
                return group_filter.reason
        self.masked.update(masked.values())
        return masked

    def _pack_buffered(self) -> list[MicroBatchRow]:
        groups = sorted(self._buffered, key=lambda group: group.draw)
        self._buffered = []
        rows = []
        for rollout in self._weighing.weighed(groups, self.step):
            for number, part in enumerate(self._parts(rollout)):
                rows.append(self._packing.add_rollout(part, 0 if number else rollout.masked))
        return [row for row in rows if row]

    def _close(self) -> MicroBatchRow:
        row = self._packing.close_step(self.open_groups)
        row = msgspec.structs.replace(row, masked=self._open_masked)
        self.step = self.step + 1
        self.open_groups = []
        self._open_masked = {}
        self._rollouts = 0
        return row
