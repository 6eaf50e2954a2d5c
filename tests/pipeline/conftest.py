"""Fixtures of several files."""

from collections.abc import Iterator

import pytest

from contracts.trainer import OptimizerSpec, WorkerSpec
from pipelinerl.training.ranks import Ranks
from tests.inference_adapters.servers import Server, ready_servers
from tests.ports import free_port
from trainer_adapters.scripted import ScriptedTrainer


@pytest.fixture
def worker() -> Iterator[ScriptedTrainer]:
    worker = ScriptedTrainer()
    worker.init_worker(
        WorkerSpec(
            model_path="",
            optimizer=OptimizerSpec(lr=0.1),
            master_port=free_port(),
            seed=7,
        )
    )
    yield worker
    worker.close()


@pytest.fixture
def ranks() -> Ranks:
    return Ranks(0, 1, 5)


@pytest.fixture
def url(pair: list[Server]) -> str:
    return pair[0].url


@pytest.fixture
def urls(pair: list[Server]) -> list[str]:
    return [server.url for server in pair]


@pytest.fixture(scope="session")
def pair() -> Iterator[list[Server]]:
    """Yields two servers for tests that leave them alive."""
    with ready_servers(2) as servers:
        yield servers
