"""Giving jobs their places: what a run waits for, and for how long."""

import pytest

from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import JobState, Lost, Placed, Placement, Waiting
from pipelinerl.launcher.executors.local import LocalExecutor, visible_gpus
from pipelinerl.launcher.prepare import place
from pipelinerl.launcher.resource_requests import job_specs

PLACEMENT = Placement("node", "10.0.0.1", 80)
ON_RAY = ("executor=ray", "streams=redis", "world.servers=3")


class Table:
    """An executor whose jobs have the given states, and are placed otherwise."""

    place_timeout_s = 0.2

    def __init__(self, **states: JobState):
        self._given = {name.replace("_", "-"): state for name, state in states.items()}
        self._states: dict[str, JobState] = {}

    def request(self, requests):
        self._states = {
            request.name: self._given.get(request.name, Placed(PLACEMENT)) for request in requests
        }

    def poll(self):
        return self._states


def placed(*overrides: str, **states: JobState) -> dict[str, Placement]:
    config = compose_config([*ON_RAY, *overrides])
    return place(config, Table(**states), job_specs(config))


def test_a_run_begins_with_as_few_servers_as_it_may():
    waiting = {"server_1": Waiting("{CPU: 1}"), "server_2": Waiting("{CPU: 1}")}
    placements = placed("world.servers_min=1", **waiting)
    assert [*placements] == ["server-0", "actor", "preprocessor", "trainer-0"]
    with pytest.raises(
        PlanError, match=r"within executor.place_timeout_s=0.2 s: server-1, server-2: waiting for \{CPU"
    ):
        placed("world.servers_min=2", **waiting)


def test_it_does_not_begin_without_its_workers():
    with pytest.raises(PlanError, match="trainer-0: waiting for the moon"):
        placed(trainer_0=Waiting("the moon"))


def test_a_place_that_is_lost_before_it_begins_is_said():
    with pytest.raises(PlanError, match="the place of actor is lost: its node is gone"):
        placed(actor=Lost(None, "its node is gone"))


def test_a_run_does_not_begin_where_too_many_servers_lost_their_place():
    lost = {
        "server_1": Lost(None, "nothing can listen at 10.0.0.1:8001"),
        "server_2": Lost(None, "it is gone"),
    }
    with pytest.raises(
        PlanError, match="the place of server-1 is lost: nothing can listen.*; the place of s"
    ):
        placed("world.servers_min=2", **lost)
    placements = placed("world.servers_min=1", **lost)
    assert [*placements] == ["server-0", "actor", "preprocessor", "trainer-0"]


def test_no_gpu_of_this_machine_is_given_twice(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    counts = ["world.gpus=4", "world.servers=2", "world.trainer_ranks=2"]
    config = compose_config(counts)
    executor = LocalExecutor(visible_gpus(config))
    placements = place(config, executor, job_specs(config))
    assert [placements[name].gpus for name in ("server-0", "server-1", "trainer-0", "trainer-1")] == [*"4567"]
    assert placements["actor"].gpus == ""
    executor.release(["server-1"])
    executor.request([request for _, request in job_specs(config) if request.name == "server-1"])
    assert executor.poll()["server-1"].placement.gpus == "5"
    executor.close()
