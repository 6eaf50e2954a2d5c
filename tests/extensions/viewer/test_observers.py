"""The observers that the configuration chooses, and what the launcher makes of them."""

from pathlib import Path

import pytest

from pipelinerl.components import build_observers
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.components import check_observers
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.observers import Observer

RUN_DIR = Path("run")


def observers(*settings: str) -> list[Observer]:
    return build_observers(compose_config([*settings]))


def test_a_run_has_no_observer_one_or_several_each_once():
    assert observers() == [] == observers("observers=[]")
    assert [observer.name for observer in observers("observers=viewer")] == ["viewer"]
    names = [observer.name for observer in observers("observers=[viewer,wandb,tensorboard,wandb]")]
    assert names == ["viewer", "tracker-wandb", "tracker-tensorboard"]


def test_the_viewer_ends_with_the_run_but_not_where_a_user_repeats_its_command():
    tracker, viewer = observers("observers=[trackio,viewer]")
    assert tracker.command(RUN_DIR)[1:] == ("-m", "extensions.viewer.track", "run", "--to", "trackio")
    assert tracker.announces(RUN_DIR) is None
    assert viewer.command(RUN_DIR)[1:] == ("-m", "extensions.viewer", "run")
    assert viewer.with_run == ("--end-with-run",)


def test_two_processes_of_one_name_are_refused():
    twice = compose_config(["observers=viewer", "+observers.x._target_=extensions.viewer.observers.Viewer"])
    with pytest.raises(PlanError, match="observers.x: there are two processes with the name viewer"):
        check_observers(twice, RUN_DIR, is_resumed=False)
