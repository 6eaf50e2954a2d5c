"""Retention of the actor's streams."""

from collections.abc import Iterable

from contracts.records import SamplerState
from pipelinerl.streams import StreamWriter


class KeptRollouts:
    """The part of the stream `rollouts` that retention must keep.

    checkpoint: offset that the oldest kept checkpoint needs, which precedes all unread records. None without
        checkpoints: then the first unsettled group decides.
    """

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


class SamplerStates:
    """The stream of the sampler's two newest states. A resumed run needs the newest one on the disk.

    The older one is on the disk since the last checkpoint.
    """

    def __init__(self, writer: StreamWriter):
        self._writer = writer
        self._newest = 0  # offset of the newest state

    def append(self, state: SamplerState) -> None:
        """Appends the state at a complete checkpoint, and deletes all but the last state before it."""
        self._writer.trim(self._newest)
        self._newest = self._writer.end
        self._writer.append(state)
