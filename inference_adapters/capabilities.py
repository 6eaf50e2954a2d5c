"""What a server offers: what its engine declares, and what this package does for every `TokenEngine`."""

from contracts.inference import InferenceEngine, TokenEngine

OF_THE_APP = ("stop_strings", "openai")


def capabilities(engine: InferenceEngine) -> list[str]:
    """Returns the capabilities that `/contract` states."""
    declared = engine.info().capabilities
    if not isinstance(engine, TokenEngine):
        return declared
    return [*declared, *(word for word in OF_THE_APP if word not in declared)]
