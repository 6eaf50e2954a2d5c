"""The capabilities of a server: those that its engine declares, and those that this package adds."""

from contracts.inference import InferenceEngine, TokenEngine
from inference_adapters.channel import WeightChannels

OF_THE_APP = ("metrics",)
OF_TOKEN_ENGINES = ("stop_strings", "openai", "arrays", "as_completed")


def capabilities(engine: InferenceEngine, channels: WeightChannels | None) -> list[str]:
    """Returns the capabilities that `/contract` states."""
    declared = engine.info().capabilities
    added = (*OF_TOKEN_ENGINES, *OF_THE_APP) if isinstance(engine, TokenEngine) else OF_THE_APP
    if channels is not None:
        added = (*added, *channels.capabilities(engine))
    return [*declared, *(word for word in added if word not in declared)]
