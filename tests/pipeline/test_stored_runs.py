"""Whole runs whose servers load stored weights: through relays, and through a shared directory."""

import os
import signal
from pathlib import Path

import pytest

from contracts.records import Evaluated, Restarted, ServerJoined, StepClosed, WeightsPublished
from pipelinerl.launcher.shared_store import PREFIX
from tests.pipeline.runs import (
    alive,
    assert_accounted,
    finish,
    job_pid,
    processes_of,
    records,
    resume,
    resumptions_of,
    run_to_the_end,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.small_disk import fill, make_room
from tests.step_gate import StepGate

SLOW = "+inference.arguments.token_delay_s=0.02"
RELAY = ("weights=relay", "weights.poll_s=0.1", "world.servers=2")


def of_kind(run: Path, name: str, kind: type) -> list:
    return [record for record in records(run, name) if isinstance(record, kind)]


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
def test_a_server_that_dies_comes_back_to_the_newest_version(tmp_path):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=3)
    launcher = start(run, *RELAY, "max_steps=40", "eval.every=10", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=3)
    os.kill(server_pids(run)[-1], signal.SIGKILL)
    wait_for(lambda: len(of_kind(run, "launcher_events", ServerJoined)) == 3)
    gate.open()
    (_, _, back) = of_kind(run, "launcher_events", ServerJoined)
    status, err = finish(launcher)
    assert status == 0, err
    assert back.url in of_kind(run, "trainer_events", WeightsPublished)[-1].servers
    assert_sampled_by_the_run(run)
    assert len(assert_accounted(run)["trained"]) == 40 * 8


@pytest.mark.long
def test_the_origin_is_started_again_where_it_was(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, *RELAY, "max_steps=1000", "max_lag=8")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    os.kill(job_pid(run, "contracts.store.origin"), signal.SIGKILL)
    wait_for_record(run, "launcher_events", Restarted)
    wait_for_steps(run, 20)  # more than the lag: servers get new weights again
    launcher.send_signal(signal.SIGINT)
    finish(launcher)
    (restarted,) = of_kind(run, "launcher_events", Restarted)
    assert (restarted.kind, restarted.names) == ("services", ["origin"])
    assert_sampled_by_the_run(run)
    assert_accounted(run, ended=False)


@pytest.mark.long
def test_an_origin_that_hangs_holds_up_the_run_and_not_for_good(tmp_path):
    """The launcher kills what a signal has stopped, and starts it again."""
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=2)
    launcher = start(run, *RELAY, "max_steps=30", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    os.kill(job_pid(run, "contracts.store.origin"), signal.SIGSTOP)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert steps(run) == 30


@pytest.mark.long
def test_a_store_that_is_full_for_a_while_costs_versions_and_not_the_run(tmp_path, small_disk):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=2)
    launcher = start(run, *RELAY, f"weights.directory={small_disk}", "max_steps=40", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    fill(small_disk)
    gate.open()
    wait_for(lambda: "cannot be written now" in (run / "logs" / "trainer-0.log").read_text())
    make_room(small_disk)
    status, err = finish(launcher)
    assert status == 0, err
    assert steps(run) == 40
    results = of_kind(run, "actor_events", Evaluated)
    assert results[-1].version == 40
    assert_sampled_by_the_run(run)
    assert_accounted(run)


@pytest.mark.parametrize("transport", [RELAY, ("weights=shared",)])
@pytest.mark.long
def test_a_stopped_run_resumes_under_another_id_of_its_own(tmp_path, transport):
    run = tmp_path / "run"
    launcher = start(run, *transport, "max_steps=1000", "checkpoint.every=2")
    wait_for_record(run, "trainer_events", StepClosed, count=5)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher)[0] == 130
    status, err = finish(resume(run, "max_steps=12"))
    assert status == 0, err
    lives = {p.run for p in of_kind(run, "trainer_events", WeightsPublished)}
    assert len(lives) == 2 and len({life[:8] for life in lives}) == 1
    assert_sampled_by_the_run(run)
    assert_accounted(run)


@pytest.mark.parametrize("transport", [RELAY, ("weights=shared",)])
@pytest.mark.long
def test_a_trainer_that_is_killed_publishes_again_from_where_it_was(tmp_path, transport):
    run = tmp_path / "run"
    directory = [f"weights.directory={tmp_path / 'stores'}"]
    gate = StepGate(tmp_path, steps=5)
    launcher = start(run, *transport, *directory, "max_steps=30", "checkpoint.every=2", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed, count=5)
    os.kill(job_pid(run, "pipelinerl.trainer"), signal.SIGKILL)
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert len(resumptions_of(run)) == 1
    assert_sampled_by_the_run(run)
    assert_accounted(run)
    assert not list((tmp_path / "stores").glob(f"{PREFIX}*"))


@pytest.mark.long
def test_no_store_in_memory_outlives_the_next_launcher(tmp_path):
    run = tmp_path / "run"
    shared = ["weights=shared", f"weights.directory={tmp_path}"]
    launcher = start(run, *shared, "max_steps=1000")
    wait_for_record(run, "trainer_events", StepClosed)
    servers = server_pids(run)
    launcher.send_signal(signal.SIGKILL)
    finish(launcher)
    wait_for(lambda: processes_of(run) == [] and not any(map(alive, servers)))
    assert list(tmp_path.glob(f"{PREFIX}*"))
    run_to_the_end(tmp_path / "next", *shared, "max_steps=1")
    assert not list(tmp_path.glob(f"{PREFIX}*"))


@pytest.mark.long
@pytest.mark.parametrize("transport", [RELAY, ("weights=shared", "world.servers=2")])
def test_an_evaluation_on_a_pinned_server_is_of_the_version_that_it_keeps(tmp_path, transport):
    run = tmp_path / "run"
    pinned = ["eval.pinned=true", "eval.every=4", "eval.problems=64", "eval.concurrency=4", SLOW]
    summary = run_to_the_end(run, *transport, *pinned, "max_steps=16")
    assert summary["accounting_errors"] == []
    results = [result for result in of_kind(run, "actor_events", Evaluated) if result.pinned]
    assert results
    assert all(r.version == r.first_version == r.last_version for r in results)


@pytest.mark.long
def test_every_rank_takes_part_in_what_only_rank_0_writes(tmp_path):
    run = tmp_path / "run"
    summary = run_to_the_end(run, *RELAY, "world.trainer_ranks=2", "max_steps=6")
    assert summary["optimizer_steps"] == 6
    assert_sampled_by_the_run(run)
