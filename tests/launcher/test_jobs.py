"""Which command starts a server: its interpreter, its options, its engine."""

import os
import sys

import pytest

from contracts.limits import START_VARIABLE
from pipelinerl.errors import PlanError
from pipelinerl.judging.child import service_environment
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import Placement
from pipelinerl.launcher.jobs import JobPlanner, missing_engine
from pipelinerl.paths import ROOT, importable
from pipelinerl.process import REFERENCE_VARIABLE
from tests.extensions.stored_weights.test_launch import jobs_of

PYTHON = sys.executable
OTHER = "/bin/sh"  # stands for another engine's interpreter


def commands(tmp_path, *overrides: str) -> list[tuple[str, ...]]:
    return [job.command for job in jobs_of(tmp_path, *overrides).values() if job.role == "server"]


def test_options_of_every_kind(tmp_path):
    arguments = "{hold_timeout_s: 7000, some_number: 3, on: true, off: false, unset: null}"
    (command,) = commands(tmp_path, f"+inference.arguments={arguments}")
    assert command[:3] == (PYTHON, "-m", "inference_adapters.transformers")
    assert command[-6:] == ("--hold-timeout-s", "7000", "--some-number", "3", "--on", "--no-off")
    assert command[command.index("--model") :][:2] == ("--model", "m")


@pytest.mark.parametrize(
    ("given", "served"), [([], "m"), (["+reference.arguments.model=teacher"], "teacher")]
)
def test_a_reference_server_may_serve_a_teacher(tmp_path, given, served):
    command = jobs_of(tmp_path, "reference=transformers", *given)["reference"].command
    assert command.count("--model") == 1 and command[command.index("--model") + 1] == served


def test_servers_know_when_a_run_gives_them_up(tmp_path):
    jobs = jobs_of(tmp_path, "reference=transformers", "world.server_start_timeout_s=1799.5")
    told = {name: job.environment.get(START_VARIABLE) for name, job in jobs.items()}
    assert (told["server-0"], told["reference"], told["trainer-0"]) == ("1800", "1800", None)


@pytest.mark.parametrize("given", [[], ["reference.renew_every=5"]])
def test_a_reference_server_that_is_renewed_is_told_how_long_an_update_may_take(tmp_path, given):
    jobs = jobs_of(tmp_path, "reference=transformers", *given)
    assert ("--hold-timeout-s" in jobs["reference"].command) == bool(given)
    assert jobs["trainer-0"].environment[REFERENCE_VARIABLE] == jobs["reference"].url


def option(command: tuple[str, ...], name: str) -> float:
    return float(command[command.index(name) + 1])


@pytest.mark.parametrize("timeout", ["rendezvous", "bucket", "live"])
def test_a_server_holds_its_requests_for_as_long_as_the_next_update_may_take(tmp_path, timeout):
    names = ("rendezvous", "bucket", "live")
    short = [f"weights.{name}_timeout_s=1000" for name in names]
    (command,) = commands(tmp_path, *short)
    held_s = option(command, "--hold-timeout-s")
    assert held_s >= 5 * 3 * 1000
    (command,) = commands(tmp_path, *short, f"weights.{timeout}_timeout_s=10000")
    assert option(command, "--hold-timeout-s") >= held_s + 5 * 8000


def test_servers_take_the_engines_in_turn(tmp_path):
    overrides = ["inference=mixed", f"inference.others.vllm.python={OTHER}", "world.servers=3"]
    found = [(command[0], command[2]) for command in commands(tmp_path, *overrides)]
    transformers = (PYTHON, "inference_adapters.transformers")
    assert found == [transformers, (OTHER, "inference_adapters.vllm"), transformers]


def test_an_engine_without_an_interpreter_of_its_own_runs_by_this_one(tmp_path):
    (command,) = commands(tmp_path, "inference.python=null")
    assert command[0] == sys.executable


def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlanError, match="/nonexistent/python is no interpreter"):
        commands(tmp_path, "inference.python=/nonexistent/python")


def test_an_environment_is_found_beside_the_launcher(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelinerl.launcher.jobs.ROOT", tmp_path)
    own = tmp_path / ".venv-vllm" / "bin" / "python"
    overrides = ["inference=vllm", "inference.python=null"]
    assert "run `make vllm-env`" in missing_engine(compose_config(overrides).inference)
    own.parent.mkdir(parents=True)
    own.touch()
    assert missing_engine(compose_config(overrides).inference) is None
    assert commands(tmp_path, *overrides)[0][0] == str(own)


def test_a_job_is_told_of_its_own_place_and_of_rank_0s(tmp_path):
    counts = ["world.servers=2", "world.trainer_ranks=2", "world.gpus=2", "executor=ray"]
    config = compose_config(["model.path=m", "streams=redis", f"inference.python={PYTHON}", *counts])
    placements = {
        "server-1": Placement("a", "10.0.0.1", 82, "1"),
        "actor": Placement("a", "10.0.0.1"),
        "trainer-0": Placement("b", "fd00::2", 93, "0", "eth1"),
        "trainer-1": Placement("b", "fd00::2", None, "1", "eth1"),
    }
    planned = JobPlanner(config, tmp_path, "token", {"STREAMS_AT": "there"}).plan(placements)
    jobs = {job.name: job for job in planned}
    assert [*jobs] == ["server-1", "actor", "trainer-0", "trainer-1"]  # server-0 has no place
    assert jobs["server-1"].command[3:7] == ("--host", "10.0.0.1", "--port", "82")
    assert jobs["server-1"].url == "http://10.0.0.1:82"
    expected = {"MASTER_ADDR": "fd00::2", "MASTER_PORT": "93", "WORLD_SIZE": "2", "RANK": "1"}
    expected |= {"GLOO_SOCKET_IFNAME": "eth1", "CUDA_VISIBLE_DEVICES": "1"}
    assert jobs["trainer-1"].environment.items() >= expected.items()
    assert "GLOO_SOCKET_IFNAME" not in jobs["server-1"].environment
    assert jobs["actor"].environment["CUDA_VISIBLE_DEVICES"] == ""
    assert [name for name, job in jobs.items() if "STREAMS_AT" in job.environment] == [*jobs][1:]


def test_the_judging_service_is_given_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "secret")
    config = compose_config(["model.path=m", "+judging.verifiers.mine._target_=mine.Judge"])
    planner = JobPlanner(config, tmp_path, "secret", {})
    job = planner.job("judging", "judging", {"judging": Placement("node", "node")})
    assert job.has_whole_environment and "secret" not in job.environment.values()


def test_jobs_find_what_the_launcher_finds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["mine", "", "/elsewhere", "mine"]))
    expected = [str(ROOT), str(tmp_path / "mine"), "/elsewhere", str(tmp_path)]
    assert importable().split(os.pathsep) == expected
    assert service_environment(tmp_path / "socket")["PYTHONPATH"].split(os.pathsep) == expected
