"""A run that has lost its disk is resumed from its copy, made at any moment."""

import shutil
import signal

from extensions.run_copy.copying import copy_run, newest_checkpoint
from tests.pipeline.runs import assert_accounted, finish, resume, run_to_the_end, start, wait_for

COPIES = 2


def test_a_run_is_resumed_from_its_copy(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "elsewhere" / "run"
    keys = ("checkpoint.every=2", "checkpoint.keep=1", "observers=copy", f"observers.copy.to={copy.parent}")
    run_to_the_end(run, *keys, "max_steps=5")
    shutil.rmtree(run)
    assert newest_checkpoint(copy).version == 5
    assert (copy / "checkpoints/final").is_dir()
    status, err = finish(resume(copy, "max_steps=6"))
    assert status == 0, err
    assert_accounted(copy)


def test_copies_that_are_made_while_the_run_goes_on_are_whole(tmp_path):
    run = tmp_path / "run"
    copies = [tmp_path / str(number) / "run" for number in range(COPIES)]
    launcher = start(run, "checkpoint.every=1", "checkpoint.keep=100", "max_steps=100000")
    for copy in copies:
        seen = newest_checkpoint(run)
        wait_for(lambda seen=seen: newest_checkpoint(run) not in (None, seen))
        copy_run(run, copy)
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    for copy in copies:
        last = newest_checkpoint(copy).version + 2
        status, err = finish(resume(copy, f"max_steps={last}"))
        assert status == 0, err
        assert_accounted(copy)
