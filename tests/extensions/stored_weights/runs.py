"""Publishers of stored weights for tests, with real servers and a real origin."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from extensions.stored_weights.store_location import StoreLocation
from extensions.stored_weights.trainer.relay import RelayPublisher, relay_publisher
from extensions.stored_weights.trainer.shared import SharedPublisher
from extensions.stored_weights.transport import Relay
from tests.inference_adapters.servers import contract, serving
from tests.pipeline.launched import Launcher, context_of
from tests.pipeline.runs import wait_for
from tests.pipeline.test_weight_publisher import config
from trainer_adapters.scripted import ScriptedTrainer

ORIGIN = "extensions.stored_weights.store.origin"


def unwaited(
    transport: str,
    worker: ScriptedTrainer,
    launcher: Launcher,
    place: StoreLocation,
    *settings: str,
    needs: Mapping[str, str] | None = None,
) -> RelayPublisher | SharedPublisher:
    """Returns a publisher that has not waited for its servers yet."""
    own_config = config(f"weights={transport}", *settings)
    manifest = worker.weight_manifest(own_config.weights.dtype)
    context = context_of(launcher, manifest, run_dir=place.run_dir, needs=needs or {})
    if transport == "shared":
        return SharedPublisher(own_config, context, place)
    return relay_publisher(own_config, Relay(own_config).options, context, place)


def made(
    transport: str, worker: ScriptedTrainer, launcher: Launcher, place: StoreLocation, *settings: str
) -> RelayPublisher | SharedPublisher:
    """Returns a publisher whose servers have been waited for."""
    publisher = unwaited(transport, worker, launcher, place, *settings)
    publisher.wait_for_servers()
    return publisher


@contextlib.contextmanager
def origin_of(directory: Path) -> Iterator[StoreLocation]:
    """Yields the place of a store below the directory, which an origin serves."""
    store = directory / "weights"
    store.mkdir(exist_ok=True)
    with serving(ORIGIN, str(store)) as origin:
        yield StoreLocation(directory, store, origin.url)


def wait_until_served(url: str, version: int, run: str) -> None:
    def is_served() -> bool:
        weights = contract(url)["weights"]
        return (weights["version"], weights["run"], weights["state"]) == (version, run, "live")

    wait_for(is_served)
