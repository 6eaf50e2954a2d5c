"""Whole runs whose servers load stored weights: through relays, and through a shared directory."""

import os
import signal
from pathlib import Path

import pytest

from contracts.records import Evaluated, Restarted, StepClosed, WeightsPublished
from extensions.stored_weights.launcher.shared_store import PREFIX
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    of_kind,
    processes_of,
    records,
    run_to_the_end,
    start,
    wait_for,
    wait_for_record,
)

SLOW = "+inference.arguments.token_delay_s=0.02"
RELAY = ("weights=relay", "weights.poll_s=0.1", "world.servers=2")


def steps(run: Path) -> int:
    return len(of_kind(run, "trainer_events", StepClosed))


def wait_for_steps(run: Path, more: int) -> None:
    before = steps(run)
    wait_for(lambda: steps(run) >= before + more)


def assert_sampled_by_the_run(run: Path) -> None:
    """Every token was sampled by a version of the run, and evaluations by the version that they name."""
    newest = max(r.version for r in of_kind(run, "trainer_events", WeightsPublished))
    sampled = [v for r in records(run, "rollouts") if not r.failed for v in r.versions]
    assert sampled and min(sampled) >= 0 and max(sampled) <= newest
    for result in of_kind(run, "actor_events", Evaluated):
        assert result.version <= result.first_version <= result.last_version


def test_servers_pull_weights_while_they_generate(tmp_path):
    run = tmp_path / "run"
    summary = run_to_the_end(run, *RELAY, SLOW, "sampling.max_tokens=16", "max_steps=6")
    assert summary["optimizer_steps"] == 6 and summary["lag_max"] <= 4
    assert summary["logprob_gap_mean_abs"] < 1e-5
    published = of_kind(run, "trainer_events", WeightsPublished)
    assert [p.version for p in published if len(p.servers) == len(p.live or [])] == list(range(7))
    assert 0 in published[0].live
    assert_sampled_by_the_run(run)
    assert_accounted(run)
    assert not (run / "pulled").exists() and processes_of(run) == []


def test_servers_load_weights_from_memory_that_is_given_back(tmp_path):
    run = tmp_path / "run"
    shared = ["weights=shared", f"weights.directory={tmp_path}"]
    summary = run_to_the_end(run, *shared, "max_steps=3", SLOW, "sampling.max_tokens=16")
    assert summary["optimizer_steps"] == 3 and summary["weight_updates"] == 4
    assert summary["updates_while_generating"] >= 1 and summary["logprob_gap_mean_abs"] < 1e-5
    published = of_kind(run, "trainer_events", WeightsPublished)
    assert all(len(p.servers) == len(p.updates) == 1 and p.live is None for p in published)
    assert_sampled_by_the_run(run)
    assert_accounted(run)
    assert not list(tmp_path.glob(f"{PREFIX}*"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_the_origin_is_started_again_where_it_was(tmp_path, number):
    run = tmp_path / "run"
    launcher = start(run, *RELAY, "max_steps=1000", "max_lag=8")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    os.kill(job_pid(run, "extensions.stored_weights.store.origin"), number)
    wait_for_record(run, "launcher_events", Restarted)
    wait_for_steps(run, 20)  # more than the lag: servers get new weights again
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    (restarted,) = of_kind(run, "launcher_events", Restarted)
    assert (restarted.kind, restarted.names) == ("services", ["origin"])
    assert_sampled_by_the_run(run)
    assert_accounted(run, ended=False)
