"""The capabilities of a server: those that its engine declares, and those that this package adds."""

from functools import cache
from importlib.util import find_spec

from contracts.inference import InferenceEngine, TokenEngine

OF_THE_APP = ("metrics",)
OF_TOKEN_ENGINES = ("stop_strings", "openai", "arrays", "as_completed")
OF_STORES = ("relay", "shared", "delta")  # of an engine that loads stored weights
NEEDED_FOR_STORES = ("aiohttp", "cryptography", "numpy", "safetensors", "zstandard")  # the extra `weights`


def capabilities(engine: InferenceEngine) -> list[str]:
    """Returns the capabilities that `/contract` states."""
    declared = engine.info().capabilities
    added = (*OF_TOKEN_ENGINES, *OF_THE_APP) if isinstance(engine, TokenEngine) else OF_THE_APP
    if type(engine).load_weights is not InferenceEngine.load_weights and stores_can_be_read():
        added = (*added, *OF_STORES)
    return [*declared, *(word for word in added if word not in declared)]


@cache
def stores_can_be_read() -> bool:
    """Returns whether the packages are installed by which a store is read."""
    return all(find_spec(package) is not None for package in NEEDED_FOR_STORES)
