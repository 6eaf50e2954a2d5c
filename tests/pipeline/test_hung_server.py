"""A server that hangs in the middle of an on-policy run costs no attempt, nor the time of one."""

import os
import signal

import pytest

from contracts.records import WeightsPublished
from tests.pipeline.runs import assert_accounted, finish, records, server_pids, start, wait_for_record

pytestmark = pytest.mark.long


def test_an_on_policy_run_ends_without_the_server_that_hangs(tmp_path):
    run = tmp_path / "run"
    overrides = ["world.servers=2", "max_lag=0", "max_steps=8", "sampling.max_tokens=40", "eval.every=null"]
    launcher = start(run, *overrides, "rollout.timeout_s=86399")
    wait_for_record(run, "trainer_events", WeightsPublished, 3)
    hung = server_pids(run)[0]
    os.kill(hung, signal.SIGSTOP)
    try:
        status, err = finish(launcher)
    finally:
        if os.path.exists(f"/proc/{hung}"):
            os.kill(hung, signal.SIGCONT)
    assert status == 0, err
    assert_accounted(run)
    assert {rollout.metrics["retries"] for rollout in records(run, "rollouts")} == {0}
    assert "has not answered" in (run / "logs" / "actor.log").read_text()
