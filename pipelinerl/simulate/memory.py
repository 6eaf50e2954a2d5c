"""Whether a simulated run would have the memory that it takes for granted. Pure."""

from collections.abc import Iterator

from contracts.model_shape import ModelShape
from pipelinerl.config import RunConfig
from pipelinerl.launcher.gpu_memory import longest_sequence, sequences_held


def warned_of_memory(config: RunConfig, shape: ModelShape | None) -> Iterator[str]:
    """Yields a line where a server has more requests than it holds of the longest sequences."""
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
