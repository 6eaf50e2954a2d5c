"""Whole runs: schedules, ranks, deaths and interruptions, with real processes."""

import signal

import pytest

from contracts.records import StepClosed, WeightsPublished
from pipelinerl.health import EQUAL_GROUPS, Alarm
from pipelinerl.metrics import metrics_path, read_metrics
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    processes_of,
    records,
    run_to_the_end,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)


def test_two_ranks_and_two_servers_update_in_flight(tmp_path):
    run = tmp_path / "run"
    slow_tokens = ["+inference.arguments.token-delay-s=0.02", "sampling.max_tokens=16", "rollout.retries=0"]
    summary = run_to_the_end(run, "world.servers=2", "world.trainer_ranks=2", "max_steps=8", *slow_tokens)
    assert summary["optimizer_steps"] == 8 and summary["weight_updates"] == 9
    assert summary["updates_while_generating"] >= 4 and summary["sequences_multi_version"] > 0
    assert summary["logprob_gap_mean_abs"] < 1e-5
    assert summary["lag_max"] <= 4
    published = [r for r in records(run, "trainer_events") if isinstance(r, WeightsPublished)]
    assert [p.version for p in published] == list(range(9)) and all(len(p.servers) == 2 for p in published)
    assert_accounted(run)


def test_async_updates_between_requests(tmp_path):
    summary = run_to_the_end(tmp_path / "run", "schedule=async", "max_steps=6", "max_lag=2")
    assert summary["sequences_multi_version"] == 0 and summary["updates_while_generating"] == 0
    assert summary["optimizer_steps"] == 6 and 0 < summary["lag_max"] <= 2


@pytest.mark.long
def test_slow_rollouts_that_are_stale_are_masked_where_that_is_asked_for(tmp_path):
    slow = ["+domain.slow=0.1", "+domain.slow_s=1.5", "max_lag=1", "batch_size=8", "inference.concurrency=16"]
    summary = run_to_the_end(tmp_path / "run", "on_stale=mask", "max_steps=12", *slow)
    rows = [r for r in records(tmp_path / "run", "rows") if r.step < 12]
    assert "stale" not in assert_accounted(tmp_path / "run") and summary["lag_max"] <= 1
    assert sum(row.masked_tokens for row in rows) > 0


def test_a_step_that_is_not_finite_closes_and_its_groups_are_dropped_by_name(tmp_path):
    run = tmp_path / "run"
    nan_once = ["objective._target_=tests.nan_objective.NanOnce", "max_steps=4"]
    summary = run_to_the_end(run, *nan_once)
    skipped = [r.skipped for r in records(run, "trainer_events") if isinstance(r, StepClosed)]
    assert skipped == [False, True, False, False] and summary["weight_updates"] == 5
    assert len(assert_accounted(run)["nonfinite"]) == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_launcher(tmp_path, number):
    """After Ctrl-C the actor also closes the domain, which owns an HTTP client."""
    run, log = tmp_path / "run", tmp_path / "log"
    calling = ("domain._target_=tests.calling_domain.CallingDomain", f"+domain.log={log}")
    launcher = start(run, *calling, "max_steps=1000")
    wait_for_record(run, "trainer_events", StepClosed)
    servers = server_pids(run)
    launcher.send_signal(number)
    status, _ = finish(launcher)
    assert status == (-9 if number == signal.SIGKILL else 130)
    wait_for(lambda: processes_of(run) == [] and not any(map(alive, servers)))
    if number == signal.SIGINT:
        opened, closed = (line.split() for line in log.read_text().splitlines())
        assert (opened[0], closed[0], opened[1]) == ("opened", "closed", closed[1])  # by one process
        assert "Unclosed" not in (run / "logs" / "actor.log").read_text()


def test_a_run_that_can_learn_nothing_gives_up_and_says_why(tmp_path):
    run = tmp_path / "run"
    status, err = finish(start(run, "+domain.agreeing=1.0", f"give_up_after={EQUAL_GROUPS}"))
    assert status == 1 and "gave up: 64 groups in a row were dropped" in err and "zero_advantage 64" in err
    (told,) = [
        line
        for line in read_metrics(metrics_path(run, "preprocessor"))
        if f"alarm_{Alarm.EQUAL_REWARDS}" in line
    ]
    assert told["groups"] == EQUAL_GROUPS
