"""The alarm of groups from which nothing can be learnt. Pure state, no I/O.

The preprocessor calls `begins_with` once per group, also if no step is ever full.
"""

from collections.abc import Sequence

from contracts.records import Rollout

IN_A_ROW = 64  # groups


class EqualRewards:
    """The alarm `equal_rewards`: it begins with the 64th dropped group in a row whose rewards are equal.

    A group that joins a step ends it, also with equal rewards: answers of a file, for instance, have them.
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def begins_with(self, group: Sequence[Rollout], is_dropped: bool) -> bool:
        """Observes a finished group. Returns True if the alarm begins with it."""
        rewards = {rollout.reward for rollout in group if not rollout.failed}
        if not is_dropped or len(rewards) > 1:
            self._in_a_row = 0
        elif rewards:  # a group of failures says nothing about rewards
            self._in_a_row += 1
            return self._in_a_row == IN_A_ROW
        return False
