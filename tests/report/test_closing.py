"""The last lines of a report, which a newcomer reads first."""

import sys
from pathlib import Path

import pytest

from pipelinerl.report.closing import closing_lines

RUN = Path.cwd() / "runs" / "my run"
SOLVED = {
    "solved_at": 30,
    "optimizer_steps": 32,
    "steps_skipped": 0,
    "steps_without_gradient": 0,
    "evaluations": [{"problems": 256}, {"problems": 256}],
    "heldout_success_start": 0.184,
    "heldout_success_end": 0.968,
    "wall_s": 144.0,
    "rollouts_started": 64,
    "rollouts_trained": 32,
    "rollouts_dropped": {"zero_advantage": 24, "stale": 8},
    "rollouts_in_flight": 0,
    "rollouts_lost": 0,
    "bottleneck": "generation bound: the trainer waited",
}


NOT_LEARNT = {"solved_at": None, "heldout_success_start": None, "wall_s": None}
NOT_LEARNT |= {"steps_skipped": 3, "steps_without_gradient": 4}


@pytest.fixture(autouse=True)
def activated(monkeypatch) -> None:
    """Has the command `python` start this interpreter, as in an activated environment."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))


def test_a_solved_run_ends_with_what_was_learnt_what_bounded_it_and_what_is_next():
    assert closing_lines(SOLVED, RUN, ended=True, is_solved=True, problem="1 + 1 =: “2” is right") == [
        "learned 0.18 → 0.97 held-out success in 32 steps, 2.4 minutes; solved",
        "  one problem  1 + 1 =: “2” is right",
        "  rollouts     64 started, 32 trained, dropped 32: 24 zero_advantage (all rewards equal), "
        "8 stale (sampled by weights older than max_lag allows), 0 lost",
        "  bound by     generation bound: the trainer waited",
        "what to do next:",
        "  python -m extensions.viewer 'runs/my run'                        look at it in a browser",
        "  python -m extensions.viewer.records group 'runs/my run' 0        read what happened to group 0",
        "  python launch.py run_dir='runs/my run' resume=true stop_at=null  train it further",
        "  python launch.py --help                                          list what another run can change",
    ]


def test_what_taught_nothing_is_said_at_the_end():
    (first, *_) = closing_lines(SOLVED | NOT_LEARNT, RUN, ended=False, is_solved=False)
    assert first == (
        "stopped before its end after 32 steps (3 of them skipped, 4 of them without a gradient), "
        "no recorded time; held-out success was not measured twice"
    )


def test_a_run_that_its_last_evaluation_solves_is_trained_further_without_stop_at():
    """It ended by `max_steps`; resumed with `stop_at`, it would be refused as solved."""
    lines = closing_lines(SOLVED | {"solved_at": None}, RUN, ended=True, is_solved=True)
    assert lines[0].endswith("; ended")
    assert "resume=true max_steps=64 stop_at=null  train it further" in lines[7]


def test_results_on_different_numbers_of_problems_are_told_with_them():
    grown = SOLVED | {"evaluations": [{"problems": 256}, {"problems": 1000}]}
    first, *_ = closing_lines(grown, RUN, ended=True, is_solved=True, problem=None)
    assert "0.18 → 0.97 held-out success (of 256 and of 1000 problems) in 32 steps" in first
