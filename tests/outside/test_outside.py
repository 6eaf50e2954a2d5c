"""Parts that docs/extend.md describes, each in a directory outside of the project, do their work in a run."""

import json
import os
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

import launch
from contracts.records import WeightsPublished
from pipelinerl.errors import PartError
from pipelinerl.launcher.checking.components import check_observers
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.local import LocalExecutor
from pipelinerl.observers import Observer
from pipelinerl.streams.of_run import Files
from pipelinerl.weight_transport import Group
from tests.pipeline.runs import MINIATURE, assert_accounted, finish, launch_command, of_kind

HERE = Path(__file__).parent
PARTS = sorted({str(path.parent) for path in HERE.glob("*/*.py")})


def test_a_transport_an_executor_and_an_observer_work_together(tmp_path):
    run = tmp_path / "run"
    weights = tmp_path / "weights"
    started = tmp_path / "started"
    launcher = launch_command(
        run,
        *MINIATURE,
        "max_steps=3",
        "weights=copied",
        f"weights.directory={weights}",
        "executor._target_=shell_executor.ShellExecutor",
        f"+executor.started={started}",
        "+observers.alarm._target_=reward_alarm.RewardAlarm",
        "+observers.alarm.below=2",
        environment={"PYTHONPATH": os.pathsep.join(PARTS)},
        directory=HERE / "copied_weights",
    )
    status, err = finish(launcher)
    assert (status, "warning" in err) == (0, False), err
    assert_accounted(run)

    published = of_kind(run, "trainer_events", WeightsPublished)
    assert [(record.version, len(record.updates)) for record in published] == [(v, 1) for v in range(4)]
    stored = [load_file(weights / f"{record.version}.safetensors") for record in published]
    sizes = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in stored]
    assert sizes == [record.bytes for record in published]
    biases = [tensors["lm_head.bias"].tolist() for tensors in stored]
    assert all(biases.count(bias) == 1 for bias in biases)
    summary = json.loads((run / "summary.json").read_text())
    assert summary["logprob_gap_mean_abs"] < 1e-5  # the servers hold what the trainer has

    assert sorted(started.read_text().split()) == ["actor", "preprocessor", "server-0", "trainer-0"]
    assert "at version" in (run / "alarm.txt").read_text()


class WrongExecutor(LocalExecutor):
    def poll(self):
        raise KeyError("gpus")


class NoExecutor(LocalExecutor):
    @classmethod
    def of(cls, config, options):
        return None


class NoStreams(Files):
    def open(self, on_wait=None):
        return None


class Bare(Files):
    def __init__(self):
        pass


class WrongTransport(Group):
    def plan_notes(self):
        raise KeyError("gpus")


class WrongObserver(Observer):
    def command(self, run_dir):
        raise KeyError("gpus")


class PathObserver(Observer):
    def command(self, run_dir):
        return ("watch", run_dir)


@pytest.mark.parametrize(
    ("part", "says"),
    [("WrongObserver", "it raised KeyError: 'gpus'"), ("PathObserver", "it gave a tuple of 2")],
)
def test_what_an_observer_does_wrong_is_told_before_the_start(tmp_path, part, says):
    config = compose_config(
        ["inference=scripted", "trainer=scripted", f"+observers.own._target_={__name__}.{part}"]
    )
    with pytest.raises(PartError, match=rf"{part} \(.*test_outside.py:\d+\): .*{says}"):
        check_observers(config, tmp_path, is_resumed=False)


@pytest.mark.parametrize(
    "overrides",
    [f"executor._target_={__name__}.WrongExecutor", f"weights._target_={__name__}.WrongTransport plan=true"],
)
def test_an_error_in_a_part_is_one_line_that_names_its_place(capsys, tmp_path, overrides):
    run = ["inference=scripted", "trainer=scripted", f"run_dir={tmp_path / 'run'}", *overrides.split()]
    assert launch.main(run) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"launch.py: tests/outside/test_outside.py:\d+ raised KeyError: 'gpus'", line)


@pytest.mark.parametrize(
    ("key", "part", "status", "says"),
    [
        ("executor", "NoExecutor", 1, "expected an object of class Executor, but it gave None"),
        ("streams", "NoStreams", 1, "expected an object of class Streams, but it gave None"),
        ("streams", "Bare", 2, "a backend is made of (section, run_dir)"),
    ],
)
def test_a_part_of_another_form_is_one_line(capsys, tmp_path, key, part, status, says):
    run = ["inference=scripted", "trainer=scripted", f"run_dir={tmp_path / 'run'}"]
    assert launch.main([*run, f"{key}._target_={__name__}.{part}"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line and says in line
