"""Whole runs as islands, which learn the demo together: `make soak-islands-learn`. Minutes each."""

import pytest

from benchmarks.islands.runs import CASES, run
from tests.pipeline.runs import SEED

pytestmark = [pytest.mark.long, pytest.mark.engines]
CLOSE = 0.1  # of one seed; docs/islands.md has the mean of three


def test_islands_learn_what_one_run_learns_and_end_with_one_model(tmp_path):
    one = run(CASES["one"], SEED, tmp_path / "one")
    for name in ("mean-10", "three-mean-10"):
        ran = run(CASES[name], SEED, tmp_path / name)
        print(f"{name}: {ran}, one run: {one.success}")
        assert ran.same
        assert ran.rounds == ran.tried == 6
        assert ran.success > one.success - CLOSE
