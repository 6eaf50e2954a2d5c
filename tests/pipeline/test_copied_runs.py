"""A run that is copied to a second place after each checkpoint is resumed from there."""

import shutil

from pipelinerl.training.run_copy import copy_run
from tests.pipeline.runs import assert_accounted, finish, resume, run_to_the_end


def test_a_run_whose_disk_is_lost_is_resumed_from_its_copy(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "elsewhere" / "copy"
    keys = ("checkpoint.every=2", "checkpoint.keep=1", f"checkpoint.copy_to={copy}")
    run_to_the_end(run, *keys, "max_steps=5")
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["00000005"]
    assert not list(copy.rglob("*.copying"))
    shutil.rmtree(run)
    status, err = finish(resume(copy, "max_steps=6", "checkpoint.copy_to=null"))
    assert status == 0, err
    assert_accounted(copy)


def test_a_copy_that_fails_is_said_and_the_run_goes_on(tmp_path, caplog):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0")
    (tmp_path / "file").touch()
    copy_run(run, tmp_path / "file" / "copy")
    assert "is not a copy of the newest checkpoint: " in caplog.text
