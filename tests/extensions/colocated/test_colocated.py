"""Runs in which servers and trainer take turns: the order of the phases, requests that wait, a resume."""

import pytest

from contracts.records import PhaseBegan, StepClosed, WeightsPublished
from tests.pipeline.runs import assert_accounted, finish, records, resume, run_to_the_end

COLOCATED = ("schedule=colocated", "weights=shared", "rollout.retries=0")
# A step is trained while the next requests of few places have begun.
SLOW = ("+inference.arguments.token-delay-s=0.02", "sampling.max_tokens=16", "inference.concurrency=8")


def order_of(run) -> list[tuple[str, int]]:
    """Returns what the trainer recorded, in order: phases, steps and publications, each with its version."""
    names = {StepClosed: "step", WeightsPublished: "live"}
    found = [r for r in records(run, "trainer_events") if isinstance(r, (PhaseBegan, *names))]
    return [(r.phase if isinstance(r, PhaseBegan) else names[type(r)], r.version) for r in found]


@pytest.mark.parametrize("max_lag", [0, 1])
def test_servers_sleep_while_each_step_is_trained(tmp_path, max_lag):
    run = tmp_path / "run"
    more = ("world.servers=2", "world.trainer_ranks=2", "max_steps=4", f"max_lag={max_lag}")
    summary = run_to_the_end(run, *COLOCATED, *SLOW, *more)
    turn = [("train", 0), ("step", 0), ("generate", 0), ("live", 0)]
    turns = [(name, version) for version in range(1, 5) for name, _ in turn]
    last = [("train", 4), ("generate", 4), ("live", 4)]  # the weights are exported meanwhile
    assert order_of(run) == [("generate", 0), ("live", 0), *turns, *last]
    assert summary["lag_max"] <= max_lag and (summary["sequences_multi_version"] > 0) == (max_lag > 0)
    assert summary["logprob_gap_mean_abs"] < 1e-5
    assert_accounted(run)


def test_a_resumed_run_goes_on_where_a_checkpoint_was(tmp_path):
    run = tmp_path / "run"
    run_to_the_end(run, *COLOCATED, "max_steps=2", "checkpoint.every=2")
    status, err = finish(resume(run, "max_steps=3"))
    assert status == 0, err
    steps = [version for name, version in order_of(run) if name == "step"]
    assert steps == [1, 2, 3]
    assert_accounted(run)
