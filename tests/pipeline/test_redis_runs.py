"""Whole runs whose records travel through a Redis server."""

import os
import signal

import pytest
import redis

from contracts.records import StepClosed
from pipelinerl.process import REDIS_VARIABLE
from pipelinerl.streams.redis_connection import without_secrets
from pipelinerl.streams.redis_server import served
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    job_pid,
    processes_of,
    records,
    resume,
    resumptions_of,
    start,
    wait_for,
    wait_for_record,
)
from tests.step_gate import StepGate

WORKERS = ("actor", "preprocessor", "trainer")


@pytest.mark.long
def test_connections_that_break_in_mid_run_lose_no_group(tmp_path, redis_url, monkeypatch):
    """On a server of the user's, named in the environment."""
    monkeypatch.setenv(REDIS_VARIABLE, redis_url)
    run, admin, killed = tmp_path / "run", redis.Redis.from_url(redis_url), set()
    gate = StepGate(tmp_path, steps=2)
    launcher = start(run, "streams=redis", "max_steps=40", *gate.settings)
    for steps in (2, 5, 8, 11):
        gate.allow(steps)
        wait_for_record(run, "trainer_events", StepClosed, count=steps)
        processes = {f":{job_pid(run, f'pipelinerl.{worker}')}:": worker for worker in WORKERS}
        for client in admin.client_list():
            for process, worker in processes.items():
                if process in client["name"] and admin.client_kill_filter(_id=client["id"]):
                    killed.add((worker, client["name"].split(":")[2]))
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert killed >= {(worker, "reader") for worker in WORKERS}
    assert killed >= {("actor", "rollouts"), ("preprocessor", "rows"), ("trainer", "trainer_events")}
    assert len(assert_accounted(run)["trained"]) == 40 * 8
    config = (run / "config.yaml").read_text()
    assert redis_url not in config and without_secrets(redis_url) in config


@pytest.mark.engines
def test_a_run_on_a_server_of_its_own_is_killed_and_resumed(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=3)
    settings = ("streams=redis", "max_steps=8", "checkpoint.every=2", "restarts=0")
    launcher = start(run, *settings, *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=3)
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    gate.open()
    assert finish(launcher)[0] == 1
    assert not processes_of(run)
    assert_accounted(run, ended=False)
    status, err = finish(resume(run))
    assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 8 * 8
    assert len(resumptions_of(run)) == 1


@pytest.mark.long
@pytest.mark.parametrize("is_stopped", [False, True], ids=["well", "stopped"])
def test_the_server_of_a_run_ends_with_its_launcher(tmp_path, monkeypatch, is_stopped):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    run = tmp_path / "run"
    launcher = start(run, "streams=redis", "max_steps=1000")
    wait_for_record(run, "trainer_events", StepClosed)
    with served(run / "redis") as url:
        client = redis.Redis.from_url(url)
        events = client.xlen(next(client.scan_iter("pipelinerl:*:stream:trainer_events")))
    server = client.info("server")["process_id"]
    if is_stopped:
        os.kill(server, signal.SIGSTOP)
    launcher.send_signal(signal.SIGKILL)
    finish(launcher)
    wait_for(lambda: not alive(server))
    assert len(records(run, "trainer_events")) >= events  # it has written down what it knew


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    yield
    wait_for(lambda: processes_of(tmp_path) == [])
