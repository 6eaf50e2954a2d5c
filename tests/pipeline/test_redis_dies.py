"""Runs on a Redis server of their own that is killed or stopped, and is started again on its log."""

import json
import os
import signal
from pathlib import Path

import pytest
import redis

from contracts.records import Restarted, StepClosed
from pipelinerl.process import REDIS_VARIABLE
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    processes_of,
    records,
    resumptions_of,
    start,
    wait_for,
    wait_for_record,
)
from tests.step_gate import StepGate

pytestmark = pytest.mark.long

KILLED = "redis was killed by signal 9 (out of memory?); see "


@pytest.fixture(autouse=True)
def own_server(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    yield
    wait_for(lambda: processes_of(tmp_path) == [])


def pid_of_redis(run: Path) -> int | None:
    """The process that answers now."""
    try:
        return redis.Redis.from_url((run / "redis" / "url").read_text()).info("server")["process_id"]
    except redis.ConnectionError:
        return None


def back(run: Path, dead: int) -> bool:
    return pid_of_redis(run) not in (None, dead)


def test_a_server_that_is_killed_again_and_again_is_back_and_no_group_is_lost(tmp_path):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=2)
    launcher = start(run, "streams=redis", "max_steps=30", "checkpoint.every=5", *gate.settings)
    for steps in (2, 6, 10):
        gate.allow(steps)
        wait_for_record(run, "trainer_events", StepClosed, count=steps)
        pid = pid_of_redis(run)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda dead=pid: back(run, dead))
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert err.count(KILLED) == 3
    restarted = [record for record in records(run, "launcher_events") if isinstance(record, Restarted)]
    assert [record.names for record in restarted] == [["redis"]] * 3
    assert all(record.why.startswith(KILLED) for record in restarted)
    assert len(assert_accounted(run)["trained"]) == 30 * 8
    assert resumptions_of(run) == []


def test_a_server_that_is_stopped_is_killed_and_started_again(tmp_path):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=2)
    launcher = start(run, "streams=redis", "max_steps=20", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    os.kill(pid_of_redis(run), signal.SIGSTOP)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert "redis has not answered for 30 s, and was killed; see " in err
    assert len(assert_accounted(run)["trained"]) == 20 * 8
    assert json.loads((run / "summary.json").read_text())["rollouts_failed"] == {}


def test_a_server_that_cannot_live_ends_the_run_by_name(tmp_path):
    """Another's file in the place of its log: it cannot be read again."""
    run = tmp_path / "run"
    launcher = start(run, "streams=redis", "max_steps=1000")
    wait_for_record(run, "trainer_events", StepClosed)
    pid = pid_of_redis(run)
    os.kill(pid, signal.SIGSTOP)
    (manifest,) = (run / "redis").glob("appendonlydir/*.manifest")
    manifest.write_text("nonsense\n")
    os.kill(pid, signal.SIGKILL)
    status, err = finish(launcher)
    assert status == 1
    last_line = err.strip().splitlines()[-1]
    assert last_line.startswith("launch.py: redis ended with status 1; see ") and "redis/log" in last_line
