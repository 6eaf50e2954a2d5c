"""Whatever happens to rollouts, nothing deadlocks and every group is accounted for by name.

`make soak` runs the same with 10,000 groups.
"""

import os

import pytest

from contracts.records import StepClosed
from tests.pipeline.runs import SEED, assert_accounted, records, run_to_the_end

GROUPS = int(os.environ.get("SOAK_GROUPS", "300"))
TROUBLE = (
    "+domain.failing=0.45",
    "+domain.slow=0.02",
    "+domain.slow_s=0.5",
    "+domain.agreeing=0.3",
    "rollout.retries=1",
    "group_size=2",
    "batch_size=32",
    "sampling.max_tokens=2",
    "eval.every=5",
)


@pytest.mark.parametrize("max_lag", [pytest.param(0, marks=pytest.mark.long), 4])
def test_every_group_is_accounted_for(tmp_path, max_lag):
    steps = max(3, GROUPS // 60)  # about a quarter of the groups has signal, sixteen make a step
    settings = [f"seed={SEED}", f"max_lag={max_lag}", f"max_steps={steps}", *TROUBLE]
    summary = run_to_the_end(tmp_path / "run", *settings)
    outcomes = assert_accounted(tmp_path / "run")
    assert len(outcomes["trained"]) == steps * 16
    assert {"failed", "zero_advantage", "trained"} <= set(outcomes)
    assert sum(map(len, outcomes.values())) >= GROUPS
    assert summary["rollouts_lost"] == 0 and summary["accounting_errors"] == []
    assert summary["rollouts_retried"] > 0
    assert summary["rollouts_trained"] == len(outcomes["trained"]) * 2
    steps_made = [r for r in records(tmp_path / "run", "trainer_events") if isinstance(r, StepClosed)]
    assert max(lag for step in steps_made for lag in step.lag_histogram) <= max_lag
