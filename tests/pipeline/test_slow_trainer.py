"""A trainer that is slower than the servers holds them back, and finds what it has not read yet."""

import pytest

from pipelinerl.rollouts.admission import STEPS_AHEAD
from tests.pipeline.runs import assert_accounted, run_to_the_end

BATCH = 16
IN_FLIGHT = 8
SLOW = (
    "objective._target_=tests.slow_objective.Slow",
    f"batch_size={BATCH}",
    f"inference.concurrency={IN_FLIGHT}",
    "max_steps=6",
    "on_stale=keep",
    "eval.problems=1",
    "probe.every=100",
    "streams.segment_bytes=4096",  # of each stream less than two steps are kept for its size alone
    "streams.keep_bytes=4096",
)


@pytest.mark.long
@pytest.mark.parametrize("settings", [["max_lag=null"], ["max_lag=4", "checkpoint.every=null"]])
def test_a_slow_trainer_loses_nothing(tmp_path, settings):
    run = tmp_path / "run"
    summary = run_to_the_end(run, *SLOW, *settings)
    assert summary["optimizer_steps"] == 6 and summary["rollouts_trained"] == 6 * BATCH
    left = 4 * len(assert_accounted(run).get("training_done", ()))
    admitted = STEPS_AHEAD * BATCH + 4 * IN_FLIGHT  # any of those in flight may be the last of its group
    assert BATCH <= left <= admitted
    assert 0 < summary["lag_max"] <= admitted / BATCH
