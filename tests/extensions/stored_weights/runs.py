"""Publishers of stored weights for tests, with real servers and a real origin."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from extensions.stored_weights.trainer.relay import RelayPublisher
from extensions.stored_weights.trainer.shared import SharedPublisher
from extensions.stored_weights.trainer.stored import StorePlace
from pipelinerl.training.publishing.publishers import new_publisher
from tests.inference_adapters.servers import CHANNELS, Server, contract, serving, wait_ready
from tests.pipeline.launched import Launcher
from tests.pipeline.runs import wait_for
from tests.pipeline.test_weight_publisher import config
from trainer_adapters.scripted import ScriptedTrainer

SCRIPTED = "inference_adapters.scripted"
ORIGIN = "extensions.stored_weights.store.origin"


def unwaited(
    transport: str,
    worker: ScriptedTrainer,
    launcher: Launcher,
    place: StorePlace,
    *settings: str,
    needs: Mapping[str, str] | None = None,
) -> RelayPublisher | SharedPublisher:
    """Returns a publisher that has not waited for its servers yet."""
    own_config = config(f"weights={transport}", *settings)
    return new_publisher(
        own_config,
        place,
        launcher.servers(),
        None,
        worker.weight_manifest(own_config.weights.dtype),
        launcher.condemned.append,
        needs or {},
        "127.0.0.1",
    )


def made(
    transport: str, worker: ScriptedTrainer, launcher: Launcher, place: StorePlace, *settings: str
) -> RelayPublisher | SharedPublisher:
    """Returns a publisher whose servers have been waited for."""
    publisher = unwaited(transport, worker, launcher, place, *settings)
    publisher.wait_for_servers()
    return publisher


@contextlib.contextmanager
def origin_of(directory: Path) -> Iterator[StorePlace]:
    """Yields the place of a store below the directory, which an origin serves."""
    store = directory / "weights"
    store.mkdir(exist_ok=True)
    with serving(ORIGIN, str(store)) as origin:
        yield StorePlace(directory, store, origin.url)


@contextlib.contextmanager
def ready_servers(count: int, *options: str) -> Iterator[list[Server]]:
    """Yields scripted servers that are ready. A publisher takes them over from the one before."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serving(SCRIPTED, *CHANNELS, *options)) for _ in range(count)]
        for server in servers:
            wait_ready(server.url)
        yield servers


def wait_until_served(url: str, version: int, run: str) -> None:
    def is_served() -> bool:
        weights = contract(url)["weights"]
        return (weights["version"], weights["run"], weights["state"]) == (version, run, "live")

    wait_for(is_served)
