"""The states of the sampler, of which a run that resumes needs the newest that is on the disk."""

from contracts.records import SamplerState
from pipelinerl.streams import StreamWriter


class SamplerStates:
    """Keeps the two newest states: the one before the newest is on the disk since the last checkpoint."""

    def __init__(self, writer: StreamWriter):
        self._writer = writer
        self._newest = 0  # where it begins

    def append(self, state: SamplerState) -> None:
        """Records the state at a checkpoint that is complete, and lets those before the last one go."""
        self._writer.trim(self._newest)
        self._newest = self._writer.end
        self._writer.append(state)
