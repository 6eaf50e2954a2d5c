"""The alarm of groups from which nothing is learnt. They may keep the first step from ever being full."""

from collections.abc import Sequence

from contracts.records import Rollout
from pipelinerl.health.rules import Streak

IN_A_ROW = 64  # groups


class EqualRewards:
    """`equal_rewards` begins with the 64th dropped group in a row whose members have equal rewards.

    A group that joins a step ends it. A group without a reward does not change it.
    """

    def __init__(self) -> None:
        self._streak = Streak("equal_rewards", 1.0, steps=IN_A_ROW)

    def begins_with(self, group: Sequence[Rollout], is_dropped: bool) -> bool:
        rewards = {rollout.reward for rollout in group if not rollout.failed}
        return bool(rewards) and self._streak.begins_with(float(is_dropped and len(rewards) == 1))
