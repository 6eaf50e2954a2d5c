"""A follower notices what a tracker has not kept."""

import os
from pathlib import Path

import pytest
import wandb

from extensions.viewer.follower import Follower
from extensions.viewer.trackers.wandb_file import rows_of
from pipelinerl.errors import PlanError
from tests.extensions.viewer.held import in_wandb, lines_of
from tests.extensions.viewer.test_trackers import Run


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
        losing.setattr("extensions.viewer.trackers.wandb.rows_of", lambda path: rows_of(path) - 1)
        with pytest.raises(PlanError, match="has kept .* is its disk full"):
            follower.close()
    del follower  # and with it the lock
    again = Follower(run, "wandb")
    again.advance()
    again.close()
    assert in_wandb(run)[0] == lines_of(run)
