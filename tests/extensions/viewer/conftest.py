"""A viewer of one recorded run, which all tests of this folder share. They only ask it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.records import Rollout
from pipelinerl.streams.files import FileStreams
from tests.extensions.viewer.recorded_run import small_run
from tests.extensions.viewer.viewers import Viewer, viewing


@pytest.fixture(scope="session")
def runs_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one run, `a-run`, and what is no run."""
    directory = tmp_path_factory.mktemp("runs")
    small_run(directory / "a-run")
    (directory / "no-run").mkdir()
    (directory / "link").symlink_to(directory / "a-run")
    return directory


@pytest.fixture(scope="session")
def viewer(runs_directory: Path) -> Iterator[Viewer]:
    with viewing(runs_directory) as viewer:
        yield viewer


@pytest.fixture
def records(runs_directory: Path) -> list[Rollout]:
    """The training rollouts of the run that `viewer` shows."""
    streams = FileStreams(runs_directory / "a-run" / "streams")
    return [entry.record for entry in streams.reader("rollouts").read(timeout_s=0)]
