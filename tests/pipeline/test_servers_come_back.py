"""Whole runs whose servers are killed, added and taken away on one machine."""

import os
import signal
from pathlib import Path

from contracts.records import Restarted, ServerJoined, ServerLeft, StepClosed, WeightsPublished
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.process import REFERENCE_VARIABLE
from tests.forked import run_program
from tests.inference_adapters.metrics import scraped, status_without_token, value
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    listener,
    processes_of,
    records,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.step_gate import StepGate

KL = "regularisers=[{_target_: pipelinerl.objectives.kl.KlToReference, coefficient: 0.01}]"


def groups(run: Path) -> list[set[str]]:
    """The servers of each publication."""
    return [set(r.servers) for r in records(run, "trainer_events") if isinstance(r, WeightsPublished)]


def joined(run: Path) -> list[ServerJoined]:
    return [r for r in records(run, "launcher_events") if isinstance(r, ServerJoined)]


def left(run: Path) -> list[ServerLeft]:
    return [r for r in records(run, "launcher_events") if isinstance(r, ServerLeft)]


def serves_again(run: Path) -> list[str] | None:
    """The servers that joined after one had left, once the newest publication names them."""
    newcomers = {server.url for server in joined(run)} - groups(run)[0]
    return sorted(newcomers) if newcomers and newcomers <= groups(run)[-1] else None


def test_a_server_that_is_killed_comes_back_and_serves_the_current_version(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, "world.servers=2", "max_steps=100000")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    os.kill(server_pids(run)[-1], signal.SIGKILL)
    (back,) = wait_for(lambda: serves_again(run))
    steps = sum(isinstance(r, StepClosed) for r in records(run, "trainer_events"))
    wait_for_record(run, "trainer_events", StepClosed, count=steps + 3)
    (gone,) = left(run)
    assert gone.why == "ended" and gone.url != back
    survivors = groups(run)[0] - {gone.url}
    assert survivors in groups(run) and groups(run)[-1] == survivors | {back}
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    outcomes = assert_accounted(run, ended=False)
    assert "failed" not in outcomes
    assert processes_of(run) == []


def test_a_reference_server_that_hangs_is_started_again(tmp_path):
    run = tmp_path / "run"
    quick = ("rollout.timeout_s=4", "world.stop_timeout_s=1")
    gate = StepGate(tmp_path, steps=3)
    launcher = start(run, "reference=scripted", KL, "max_steps=8", *quick, *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    environment = Path(f"/proc/{job_pid(run, 'pipelinerl.preprocessor')}/environ").read_text().split("\0")
    (url,) = [line.partition("=")[2] for line in environment if line.startswith(REFERENCE_VARIABLE)]
    os.kill(listener(url), signal.SIGSTOP)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert_accounted(run)
    (restarted,) = [r for r in records(run, "launcher_events") if isinstance(r, Restarted)]
    assert restarted.names == ["reference"] and "hung (it left /score without an answer" in restarted.why


def test_a_server_that_may_not_be_replaced_is_the_end_of_a_run_without_another(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, "max_steps=100000", "restarts.servers=0")
    wait_for_record(run, "trainer_events", StepClosed)
    os.kill(server_pids(run)[0], signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 1
    assert "server-0 was killed by signal 9 (out of memory?); see " in err
    assert "server-0.log; it is not started again" in err
    assert "no inference server is left; see" in err
    assert processes_of(run) == []


def test_a_run_is_given_servers_and_loses_them_again(tmp_path, monkeypatch):
    """Its servers have the token of its user, and tell whoever scrapes them what was published."""
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-user")
    run = tmp_path / "run"
    launcher = start(run, "max_steps=100000")
    wait_for_record(run, "trainer_events", WeightsPublished, count=2)
    url = joined(run)[0].url
    assert status_without_token(url) == 401
    samples = scraped(url, "of-the-user")
    assert value(samples, "contract_weight_version") >= 1
    assert value(samples, "contract_weight_updates_total", state="live") >= 2
    assert value(samples, "contract_sampled_tokens_total") > 0
    assert scale(run, 2) == ""
    wait_for(lambda: len(groups(run)[-1]) == 2)
    scale(run, 1)
    wait_for(lambda: len(groups(run)[-1]) == 1)
    assert [(gone.name, gone.why) for gone in left(run)] == [("server-1", "asked")]
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    assert_accounted(run, ended=False)
    assert scale(run, 2) == f"scale: the run in {run} has ended; set world.servers when it is resumed"


def scale(run: Path, number: int) -> str:
    """What the command says."""
    return run_program("-m", "pipelinerl.scale", str(run), f"servers={number}").stderr.strip()
