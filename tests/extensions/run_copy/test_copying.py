"""A copy can be resumed whatever the run does while it is made, and is never of another run."""

import os
from pathlib import Path

import pytest

from extensions.run_copy import copying
from extensions.run_copy.copying import CopyError, copy_run, locked, newest_checkpoint
from extensions.run_copy.observer import RunCopy
from pipelinerl.launcher.composing.compose import compose_config

LAUNCHER = "streams/launcher_events/00000000000000000000.records"
ROLLOUTS = "streams/rollouts/00000000000000000000.records"


@pytest.fixture
def run(tmp_path):
    directory = tmp_path / "run"
    for file in (ROLLOUTS, "config.yaml", "heartbeats/actor", "streams/rollouts/writer.lock"):
        write(directory / file)
    write(directory / LAUNCHER, "1" * 40)
    checkpoint(directory, 1)
    return directory


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "elsewhere" / "run"


@pytest.fixture(autouse=True)
def _resumptions(monkeypatch):
    """The run was resumed as often as the launcher's stream says so."""
    monkeypatch.setattr(copying, "resumptions_of", lambda run: (run / LAUNCHER).read_text().count("resumed"))


def write(file, content="1"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def checkpoint(directory, version, content="1"):
    write(directory / f"checkpoints/{version:08d}/worker/weights", content)
    write(
        directory / f"checkpoints/{version:08d}/position.json", f'{{"version":{version},"rollouts_offset":0}}'
    )


def remove_checkpoint(directory, version):
    (directory / f"checkpoints/{version:08d}/position.json").unlink()
    (directory / f"checkpoints/{version:08d}/worker/weights").unlink()


def fail():
    raise OSError("the disk is full")


def files(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def during(monkeypatch, name, act):
    """Acts once before the file of this name is copied."""
    right = copying._copy
    left = [act]

    def copied(source, target):
        if source.name == name and left:
            left.pop()()
        right(source, target)

    monkeypatch.setattr(copying, "_copy", copied)


def test_a_copy_has_what_a_resume_needs_and_loses_what_the_run_removes(run, copy):
    copy_run(run, copy)
    assert files(run) - files(copy) == {"heartbeats/actor", "streams/rollouts/writer.lock", "copied_to"}
    checkpoint(run, 2)
    remove_checkpoint(run, 1)
    write(run / ROLLOUTS, "12")
    assert copy_run(run, copy).version == 2
    assert newest_checkpoint(copy).version == 2
    assert (copy / ROLLOUTS).read_text() == "12"
    assert not (copy / "checkpoints/00000001").exists()
    assert oct(copy.stat().st_mode)[-3:] == "700"


def test_what_has_not_changed_is_not_copied_again(run, copy, monkeypatch):
    copy_run(run, copy)
    copied = []
    monkeypatch.setattr(copying, "_copy", lambda source, _: copied.append(source))
    copy_run(run, copy)
    assert copied == []


def test_a_file_that_grows_meanwhile_is_copied_again(run, copy, monkeypatch):
    def copyfile(source, target):
        right(source, target)
        if source.name == "config.yaml":
            write(source, "grown")

    right = copying.shutil.copyfile
    with monkeypatch.context() as patched:
        patched.setattr(copying.shutil, "copyfile", copyfile)
        copy_run(run, copy)
    assert (copy / "config.yaml").read_text() == "1"
    copy_run(run, copy)
    assert (copy / "config.yaml").read_text() == "grown"


@pytest.mark.parametrize("name", ["weights", "00000000000000000000.records"])
def test_a_checkpoint_that_is_removed_meanwhile_is_not_completed(run, copy, monkeypatch, name):
    def go_on():
        checkpoint(run, 2)
        remove_checkpoint(run, 1)

    during(monkeypatch, name, go_on)
    assert copy_run(run, copy).version == 2
    assert [path.name for path in (copy / "checkpoints").iterdir()] == ["00000002"]


def test_a_run_that_is_resumed_meanwhile_is_copied_again(run, copy, monkeypatch):
    during(monkeypatch, Path(ROLLOUTS).name, lambda: write(run / LAUNCHER, "1" * 40 + "resumed"))
    copy_run(run, copy)
    assert (copy / LAUNCHER).read_text() == "1" * 40 + "resumed"


def test_after_a_resume_no_checkpoint_stays_complete_that_the_run_lost(run, copy, monkeypatch):
    checkpoint(run, 2)
    copy_run(run, copy)
    remove_checkpoint(run, 2)
    write(run / LAUNCHER, "1" * 40 + "resumed from 1")
    during(monkeypatch, Path(ROLLOUTS).name, fail)
    write(run / ROLLOUTS, "12")
    with pytest.raises(OSError, match="full"):
        copy_run(run, copy)
    assert newest_checkpoint(copy) is None


def test_a_try_that_failed_is_gone_on_with(run, copy, monkeypatch):
    with monkeypatch.context() as patched:
        during(patched, Path(ROLLOUTS).name, fail)
        with pytest.raises(OSError, match="full"):
            copy_run(run, copy)
    copied = []
    right = copying._copy
    monkeypatch.setattr(copying, "_copy", lambda *files: (copied.append(files[0].name), right(*files)))
    copy_run(run, copy)
    assert "weights" not in copied and newest_checkpoint(copy).version == 1


def test_a_place_with_coarse_times_is_a_place(run, copy, monkeypatch):
    copy_run(run, copy)
    for file in copy.rglob("*"):
        os.utime(file, (0, 0))
    copied = []
    monkeypatch.setattr(copying, "_copy", lambda source, _: copied.append(source))
    copy_run(run, copy)
    assert copied == []


def test_a_copy_that_is_in_use_or_gone_or_of_a_run_before_is_not_written(run, copy):
    copy_run(run, copy)
    with locked(copy), pytest.raises(CopyError, match="in use"):
        copy_run(run, copy)
    copy.rename(copy.parent / "unmounted")
    with pytest.raises(CopyError, match="is gone; is its disk there"):
        copy_run(run, copy)
    assert "is gone" in refusal(run, copy.parent, is_resumed=True)
    (copy.parent / "unmounted").rename(copy)
    write(run / LAUNCHER, "of a run that has the same directory")
    with pytest.raises(CopyError, match="is no copy of"):
        copy_run(run, copy)


def test_a_step_that_is_trained_anew_is_no_complete_checkpoint_until_all_is_copied(run, copy, monkeypatch):
    copy_run(run, copy)
    checkpoint(run, 1, "other weights")

    during(monkeypatch, "weights", fail)
    with pytest.raises(OSError, match="full"):
        copy_run(run, copy)
    assert newest_checkpoint(copy) is None
    copy_run(run, copy)
    assert newest_checkpoint(copy).version == 1


def test_the_last_copy_is_whole_until_the_next_one_is(run, copy, monkeypatch):
    copy_run(run, copy)
    checkpoint(run, 2)
    remove_checkpoint(run, 1)

    during(monkeypatch, "position.json", fail)
    with pytest.raises(OSError, match="full"):
        copy_run(run, copy)
    assert newest_checkpoint(copy).version == 1
    assert (copy / "checkpoints/00000001/worker/weights").exists()


def test_a_copy_that_was_resumed_is_a_run_of_its_own(run, copy):
    copy_run(run, copy)
    write(copy / "streams/launcher_events/writer.lock", "4711")
    with pytest.raises(CopyError, match="was resumed, and is a run of its own; set observers.copy.to"):
        copy_run(run, copy)


def refusal(run, to, *settings, is_resumed=False):
    config = compose_config(["observers=copy", f"observers.copy.to={to}", *settings])
    return RunCopy(str(to)).refusal(config.model_dump(by_alias=True), run, is_resumed)


def test_what_cannot_be_copied_is_refused_before_the_start(tmp_path, run, copy):
    copy_run(run, copy)
    place = copy.parent
    assert refusal(run, place, is_resumed=True) is None
    assert refusal(tmp_path / "new", place) is None
    assert "exists, and is no copy of this new run" in refusal(run, place)
    assert "is no copy of" in refusal(tmp_path / "other" / "run", place, is_resumed=True)
    assert refusal(copy, place, is_resumed=True) is None
    assert "is the run itself" in refusal(copy, place)
    assert "into its own directory" in refusal(run, run / "copies", is_resumed=True)
    assert "set checkpoint.every" in refusal(run, place, "checkpoint.every=null", is_resumed=True)
    assert "set streams=files" in refusal(run, place, "streams=redis", is_resumed=True)
    assert "no directory that can be written to" in refusal(run, run / "config.yaml" / "x")
    with pytest.raises(ValueError, match="add observers.copy.to=DIRECTORY"):
        RunCopy(None)
