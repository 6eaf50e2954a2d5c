"""Whole runs whose servers are killed, added and taken away on one machine."""

import os
import signal
from pathlib import Path

from contracts.records import ServerJoined, ServerLeft, StepClosed, WeightsPublished
from contracts.support.token import TOKEN_VARIABLE
from tests.forked import run_program
from tests.inference_adapters.metrics import scraped, status_without_token, value
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    of_kind,
    processes_of,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)


def groups(run: Path) -> list[set[str]]:
    """The servers of each publication."""
    return [set(r.servers) for r in of_kind(run, "trainer_events", WeightsPublished)]


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


def test_a_run_is_given_servers_and_loses_them_again_and_one_that_is_killed_comes_back(tmp_path, monkeypatch):
    """Its servers have the token of its user, and tell whoever scrapes them what was published."""
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-user")
    run = tmp_path / "run"
    launcher = start(run, "max_steps=100000")
    wait_for_record(run, "trainer_events", WeightsPublished, count=2)
    url = of_kind(run, "launcher_events", ServerJoined)[0].url
    assert status_without_token(url) == 401
    samples = scraped(url, "of-the-user")
    assert value(samples, "contract_weight_version") >= 1
    assert value(samples, "contract_weight_updates_total", state="live") >= 2
    assert value(samples, "contract_sampled_tokens_total") > 0
    assert scale(run, 2) == ""
    wait_for(lambda: len(groups(run)[-1]) == 2)
    scale(run, 1)
    wait_for(lambda: len(groups(run)[-1]) == 1)
    os.kill(server_pids(run)[0], signal.SIGKILL)
    wait_for(lambda: groups(run)[-1] != {url})  # it came back elsewhere
    steps = len(of_kind(run, "trainer_events", StepClosed))
    wait_for_record(run, "trainer_events", StepClosed, count=steps + 3)
    left = of_kind(run, "launcher_events", ServerLeft)
    assert [(gone.name, gone.why) for gone in left] == [("server-1", "asked"), ("server-0", "ended")]
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    assert "failed" not in assert_accounted(run, ended=False)
    assert processes_of(run) == []
    assert scale(run, 2) == f"scale: the run in {run} has ended; set world.servers when it is resumed"


def scale(run: Path, number: int) -> str:
    """What the command says."""
    return run_program("-m", "pipelinerl.scale", str(run), f"servers={number}").stderr.strip()
