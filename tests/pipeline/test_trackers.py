"""Whole runs with a tracker: it holds their metrics, and nothing that happens to its process changes them."""

import shlex
from pathlib import Path

import pytest

from tests.forked import run_program
from tests.pipeline.held_run import HeldRun
from tests.pipeline.runs import finish, resume, wait_for
from tests.view.held import as_tensorboard_has_them, in_tensorboard, lines_of

JOB = "tracker-tensorboard"


@pytest.fixture
def held_run(tmp_path) -> HeldRun:
    return HeldRun(tmp_path, JOB, "trackers=[tensorboard]")


def assert_tracked(run_dir: Path) -> None:
    """Asserts that the tracker has each number of the metrics once."""
    expected = as_tensorboard_has_them(lines_of(run_dir))
    assert {name.partition("/")[0] for name, *_ in expected} >= {"trainer", "actor", "preprocessor"}
    assert in_tensorboard(run_dir) == expected


def test_a_tracker_that_is_killed_goes_on_and_so_it_does_when_the_run_is_resumed(held_run):
    first = held_run.kill_observer()
    assert wait_for(held_run.observer_pid) != first
    assert "warning" not in held_run.finish()
    assert_tracked(held_run.directory)

    before = len(in_tensorboard(held_run.directory))
    status, err = finish(resume(held_run.directory, "max_steps=5"))
    assert (status, "warning" in err) == (0, False)
    assert len(in_tensorboard(held_run.directory)) > before
    assert_tracked(held_run.directory)


@pytest.mark.long
def test_one_that_is_killed_four_times_leaves_one_warning_whose_command_writes_the_rest(held_run):
    killed = {held_run.kill_observer() for _ in range(4)}
    assert len(killed) == 4
    warnings = [line for line in held_run.finish().splitlines() if "warning" in line]
    assert len(warnings) == 1 and f"{JOB} was killed by signal 9" in warnings[0]
    command = shlex.split(warnings[0].partition("this command writes the rest: ")[2])
    assert run_program(*command[1:]).returncode == 0
    assert_tracked(held_run.directory)
