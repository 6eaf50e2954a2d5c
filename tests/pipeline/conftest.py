"""Fixtures of several files."""

from collections.abc import Iterator

import pytest

from contracts.trainer import OptimizerSpec, WorkerSpec
from tests.inference_adapters.servers import Server
from tests.pipeline.stored_weights import ready_servers
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


@pytest.fixture(scope="session")
def pair() -> Iterator[list[Server]]:
    """Yields two servers for tests that leave them alive."""
    with ready_servers(2) as servers:
        yield servers
