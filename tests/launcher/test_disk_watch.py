"""The launcher says once that the disk of a run is full, and once that it has room again."""

import pytest

from pipelinerl.launcher.run_directory import DiskWatch
from tests.small_disk import fill, make_room


@pytest.fixture(autouse=True)
def at_every_look(monkeypatch):
    monkeypatch.setattr("pipelinerl.launcher.run_directory.EVERY_S", 0.0)


@pytest.mark.engines
def test_what_is_said_of_a_disk_that_is_full_for_a_while(small_disk, capsys):
    watch = DiskWatch(small_disk)
    watch.check()
    fill(small_disk)
    watch.check()
    watch.check()
    make_room(small_disk)
    watch.check()
    watch.check()
    assert capsys.readouterr().err.splitlines() == [
        f"launch.py: the disk of {small_disk} is full: what has to be written there waits for room",
        f"launch.py: the disk of {small_disk} has room again",
    ]
