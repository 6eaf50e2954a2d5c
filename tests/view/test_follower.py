"""A follower notices what a tracker has not kept, and what a user has deleted."""

import os
import shutil
from pathlib import Path

import pytest
import wandb

from pipelinerl.errors import PlanError
from pipelinerl.metrics import metrics_path
from pipelinerl.view.follower import Follower
from pipelinerl.view.lines import MetricsLines
from pipelinerl.view.trackers.wandb_file import rows_of
from tests.view.held import as_tensorboard_has_them, in_tensorboard, in_wandb, lines_of
from tests.view.test_trackers import Run


@pytest.fixture(autouse=True)
def own_service():
    """Ends W&B's service, which the processes of other tests would share."""
    yield
    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)


def a_run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "run")
    run.grow(0, 1, 2)
    return run


def test_wandb_says_which_lines_it_has_not_kept_and_writes_them_anew(tmp_path, monkeypatch):
    run = a_run(tmp_path).directory
    follower = Follower(run, "wandb")
    follower.advance()
    (path,) = (run / "trackers" / "wandb").glob("offline-run-*/*.wandb")
    with monkeypatch.context() as losing:
        losing.setattr("pipelinerl.view.trackers.wandb.rows_of", lambda path: rows_of(path) - 1)
        with pytest.raises(PlanError, match="has kept .* is its disk full"):
            follower.close()
    del follower  # and with it the lock
    again = Follower(run, "wandb")
    again.advance()
    again.close()
    assert in_wandb(run)[0] == lines_of(run)


def test_wandb_that_writes_nowhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(PlanError, match="WANDB_MODE=disabled writes nowhere"):
        Follower(a_run(tmp_path).directory, "wandb")


@pytest.mark.parametrize(
    ("name", "place", "is_whole"),
    [
        (
            "tensorboard",
            "tensorboard",
            lambda run: in_tensorboard(run) == as_tensorboard_has_them(lines_of(run)),
        ),
        ("wandb", "trackers/wandb", lambda run: in_wandb(run)[0] == lines_of(run)),
    ],
)
def test_what_a_user_has_deleted_is_written_anew(tmp_path, name, place, is_whole):
    run = a_run(tmp_path).directory
    for _ in range(2):
        follower = Follower(run, name)
        follower.advance()
        follower.close()
        del follower
        assert is_whole(run)
        shutil.rmtree(run / place)


def test_a_step_that_no_tracker_takes_is_left_out(tmp_path):
    run = a_run(tmp_path).directory
    with metrics_path(run, "trainer").open("a") as file:
        file.write('{"time": 1.0, "step": 1e30, "loss": 1.0}\n{"time": 2.0, "step": 7, "loss": 2.0}\n')
    assert [line.step for line in MetricsLines(run).read()][-1] == 7
