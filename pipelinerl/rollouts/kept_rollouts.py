"""Decides which part of the stream `rollouts` retention must keep. Pure state, no I/O.

With checkpoints, it is the part that the oldest kept checkpoint needs, which includes all unread records.
Without checkpoints, it is the part from the first unsettled group on.
"""

from collections.abc import Iterable


class KeptRollouts:
    """The offsets to keep. `checkpoint` is the offset that the oldest kept checkpoint needs, or None."""

    def __init__(self, checkpoint: int | None):
        self.checkpoint = checkpoint
        self._begins: dict[int, int] = {}  # unsettled group -> offset of its first rollout

    def written(self, group_id: int, begin: int) -> None:
        self._begins[group_id] = begin

    def settled(self, group_ids: Iterable[int]) -> None:
        for group_id in group_ids:
            self._begins.pop(group_id, None)

    def begin(self, end: int) -> int:
        """Returns the offset from which `rollouts`, which ends at `end`, must be kept."""
        unsettled = next(iter(self._begins.values()), end)  # groups are written in the order of offsets
        return unsettled if self.checkpoint is None else self.checkpoint
