"""Several turns, learnt by reinforcement: +exp=guessing as it ships, on the model that it makes."""

import json

import pytest

from tests.pipeline.runs import assert_accounted, finish, launch

pytestmark = pytest.mark.long


def test_reliability_is_learnt_over_turns(tmp_path):
    """The demo model is that of the checkout: made at first use, which takes minutes."""
    run = tmp_path / "run"
    status, err = finish(launch(run, "+exp=guessing"), within_s=None)
    assert status == 0, err
    summary = json.loads((run / "summary.json").read_text())
    assert summary["heldout_success_start"] <= 0.3
    assert summary["heldout_success_end"] >= 0.8
    assert summary["updates_while_generating"] > 0
    assert_accounted(run)
