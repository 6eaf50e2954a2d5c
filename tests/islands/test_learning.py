"""Whole runs as islands, which learn the demo together: `make soak-islands-SEED`. Minutes each."""

import pytest

from benchmarks.islands.runs import CASES, run

pytestmark = [pytest.mark.long, pytest.mark.engines]
CLOSE = 0.1  # of one seed; docs/islands.md has the mean of three


@pytest.mark.parametrize("seed", range(3))
def test_islands_learn_what_one_run_learns_and_end_with_one_model(tmp_path, seed):
    one = run(CASES["one"], seed, tmp_path / "one")
    for name in ("mean-10", "three-mean-10"):
        ran = run(CASES[name], seed, tmp_path / name)
        print(f"{name}: {ran}, one run: {one.success}")
        assert ran.same
        assert ran.rounds == ran.tried == 6
        assert ran.success > one.success - CLOSE
