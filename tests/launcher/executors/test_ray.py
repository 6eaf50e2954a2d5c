"""The executor of a Ray cluster, on real raylets of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.launcher.executors.ray_executor import RayExecutor
from tests.launcher.executors.kit import *  # noqa: F403
from tests.launcher.executors.kit import Bench
from tests.launcher.executors.ray_nodes import RayNodes

pytestmark = pytest.mark.engines
OF_THE_NODE = {"OF_THE_NODE": "here", "RANK": "0", "PIPELINERL_REDIS_URL": "redis://secret"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with RayNodes() as nodes:
        nodes.start(cpus=2, gpus=2, CUDA_VISIBLE_DEVICES="4,5", **OF_THE_NODE)
        yield nodes


@pytest.fixture(scope="module")
def executor(nodes: RayNodes) -> Iterator[RayExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in nodes.environment.items():
            patch.setenv(name, value)
        executor = RayExecutor("kit")
        yield executor
        executor.close()


@pytest.fixture
def bench(executor: RayExecutor, tmp_path: Path) -> Iterator[Bench]:
    yield Bench(executor, tmp_path, "ray")
    executor.drop([*executor.look()])
