"""The executor of one machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelinerl.launcher.executors.local import LocalExecutor
from tests.launcher.executors.kit import *  # noqa: F403
from tests.launcher.executors.kit import Bench

OF_THE_LAUNCHER = {
    "OF_THE_NODE": "here",
    "RANK": "0",
    "PIPELINERL_REDIS_URL": "redis://secret",
    "RAY_ADDRESS": "x",
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    for name, value in OF_THE_LAUNCHER.items():
        monkeypatch.setenv(name, value)
    executor = LocalExecutor(["4", "5"])
    yield Bench(executor, tmp_path, "local")
    executor.close()
