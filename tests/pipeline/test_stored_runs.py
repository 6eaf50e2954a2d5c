"""Whole runs whose servers load stored weights: through relays, and through a shared directory."""

from pathlib import Path

from contracts.records import Evaluated, WeightsPublished
from pipelinerl.launcher.shared_store import PREFIX
from tests.pipeline.runs import (
    assert_accounted,
    of_kind,
    processes_of,
    records,
    run_to_the_end,
)

SLOW = "+inference.arguments.token_delay_s=0.02"
RELAY = ("weights=relay", "weights.poll_s=0.1", "world.servers=2")


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
