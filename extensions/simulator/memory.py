"""Checks whether real servers would have the memory that a simulation assumes."""

from collections.abc import Iterator

from contracts.model_shape import ModelShape
from pipelinerl.config import RunConfig
from pipelinerl.launcher.checking.gpu_memory import longest_sequence, sequences_held


def warned_of_memory(config: RunConfig, shape: ModelShape | None) -> Iterator[str]:
    """Yields a warning if a server gets more requests than full-length sequences fit into its memory."""
    if shape is None or not config.world.gpus:
        return
    held = sequences_held(config, shape)
    requests = config.inference.requests_at_first
    if requests > held:
        yield (
            f"warning: a server holds the keys and values of {held} sequences of {longest_sequence(config)} "
            f"tokens, the longest, and gets {requests} requests (inference.concurrency); "
            "in the simulation all go on"
        )
