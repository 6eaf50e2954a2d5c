"""The stream of the sampler's states. A resumed run needs the newest state that is on the disk."""

from contracts.records import SamplerState
from pipelinerl.streams import StreamWriter


class SamplerStates:
    """The two newest states. The older one is on the disk since the last checkpoint."""

    def __init__(self, writer: StreamWriter):
        self._writer = writer
        self._newest = 0  # offset of the newest state

    def append(self, state: SamplerState) -> None:
        """Appends the state at a complete checkpoint, and deletes all but the last state before it."""
        self._writer.trim(self._newest)
        self._newest = self._writer.end
        self._writer.append(state)
