"""Which part of `rollouts` must stay, whatever its size. Pure state, no I/O.

With checkpoints it is what the oldest kept one needs, which includes all that nobody has read yet. Without
any it is what belongs to a group that is not settled.
"""

from collections.abc import Iterable


class KeptRollouts:
    """`checkpoint`: the offset that the oldest kept checkpoint needs, or None where there are none."""

    def __init__(self, checkpoint: int | None):
        self.checkpoint = checkpoint
        self._begins: dict[int, int] = {}  # group that is not settled -> where its first rollout begins

    def written(self, group_id: int, begin: int) -> None:
        self._begins[group_id] = begin

    def settled(self, group_ids: Iterable[int]) -> None:
        for group_id in group_ids:
            self._begins.pop(group_id, None)

    def begin(self, end: int) -> int:
        """Returns from where on `rollouts`, which ends at `end`, must stay."""
        unsettled = next(iter(self._begins.values()), end)  # groups are written in the order of offsets
        return unsettled if self.checkpoint is None else self.checkpoint
