"""Metrics files and the console view that reads them as they grow."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from pipelinerl.metrics import MetricsTail, MetricsWriter, metrics_path, read_metrics
from pipelinerl.report.console import ConsoleView, RunState


def test_a_line_holds_time_step_and_the_named_numbers(tmp_path):
    writer = MetricsWriter(tmp_path, "trainer")
    writer.write(3, loss=np.float32(0.5), ess=torch.tensor(0.25), lag_max=4)
    writer.write(4, loss=float("nan"), ess=float("-inf"), grad_norm=torch.tensor(float("inf")))
    text = (tmp_path / "metrics" / "trainer.jsonl").read_text()  # flushed by the line, before any close
    first, second = [json.loads(line, parse_constant=lambda name: 1 / 0) for line in text.splitlines()]
    assert first.pop("time") > 1.7e9 and second.pop("time") > 1.7e9
    assert first == {"step": 3, "loss": 0.5, "ess": 0.25, "lag_max": 4.0}
    assert second == {"step": 4, "loss": None, "ess": None, "grad_norm": None}


def test_a_torn_last_line_is_left_out_and_cut_by_the_next_writer(tmp_path):
    path = metrics_path(tmp_path, "actor")
    assert list(read_metrics(path)) == []
    MetricsWriter(tmp_path, "actor").write(1, reward_mean=0.5)
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert [line["step"] for line in read_metrics(path)] == [1]
    MetricsWriter(tmp_path, "actor").write(2, reward_mean=0.5)
    assert [line["step"] for line in read_metrics(path)] == [1, 2]


def test_a_tail_gives_each_line_once_when_it_is_complete(tmp_path):
    path = tmp_path / "actor.jsonl"
    tail = MetricsTail(path)
    assert list(tail.read()) == []
    with path.open("ab", buffering=0) as file:
        file.write(b'{"step": 1}\n{"st')
        assert list(tail.read()) == [{"step": 1}]
        assert list(tail.read()) == []
        file.write(b'ep": 2}\n')
        assert list(tail.read()) == [{"step": 2}]


def test_the_state_follows_the_metrics_of_the_processes():
    state = RunState(max_steps=60)
    published = {"publish_seconds": 0.2, "publish_paused_s": 0.05, "servers": 2}
    state.observe("trainer", {"time": 100.0, "step": 0, **published})
    state.observe("actor", {"time": 100.0, "step": 0, "heldout_success": 0.4})
    for step in range(1, 31):
        closed = {"lag_mean": 1.25, "lag_max": 4, "trained_tokens_per_s": 5432.1}
        state.observe("trainer", {"time": 100.0 + 2 * step, "step": step, **closed})
        state.observe("trainer", {"time": 101.0 + 2 * step, "step": step, **published})
    state.observe("actor", {"time": 160.0, "step": 30, "reward_mean": 0.8, "success_rate": 0.75})
    state.observe("actor", {"time": 161.0, "step": 30, "heldout_success": 0.9, "reward_mean": None})
    state.observe("preprocessor", {"time": 161.0, "step": 30, "dropped_stale": 3, "dropped_failed": 0})
    facts = dict(state.facts(now=160.0))
    assert facts["step"] == "30/60"
    assert facts["held-out success"] == "0.40 → 0.90"
    assert facts["train success"] == "0.75  reward 0.80"
    assert facts["trained"] == "5,432 tokens/s"
    assert facts["lag"] == "mean 1.25  max 4"
    assert facts["weight updates"] == "31  last 0.20 s, paused 0.050 s"
    assert facts["groups dropped"] == "3: stale (sampled by weights older than max_lag allows)"
    assert facts["time left"] == "1:00"


def test_without_a_terminal_each_step_and_each_evaluation_is_a_line(tmp_path, capsys):
    trainer = MetricsWriter(tmp_path, "trainer")
    actor = MetricsWriter(tmp_path, "actor")
    with ConsoleView(tmp_path, max_steps=5) as view:
        trainer.write(0, weight_version=0)
        actor.write(0, heldout_success=0.25)
        for step in range(1, 6):
            trainer.write(step, lag_mean=float(step))
            trainer.write(step, weight_version=step, publish_seconds=0.1)
            if step != 3:  # two steps may have closed since the last look
                view.update(2)
                view.update(2)
        actor.write(5, heldout_success=0.5, heldout_first_version=5, heldout_last_version=5)
    lines = capsys.readouterr().out.splitlines()
    begins = [line.split(" | ")[0] for line in lines]
    steps = [f"step {step}/5" for step in range(1, 6)]
    assert begins == ["evaluation of version 0", *steps, "evaluation of version 5"]
    assert [re.search(r"lag mean (\d)", line)[1] for line in lines[1:-1]] == list("12345")
    assert lines[-1] == "evaluation of version 5 | held-out success 0.500 | at first 0.250"


def test_steps_that_are_made_again_have_lines_again():
    state = RunState(max_steps=9)
    for at, step in enumerate([0, 1, 2, 3, 1, 2, 3, 4]):  # it goes back to the checkpoint of step 1
        state.observe("trainer", {"time": float(at), "step": step})
    steps = [line.split(" | ")[0] for line in state.lines]
    assert steps == [f"step {step}/9" for step in (1, 2, 3, 2, 3, 4)]
    assert dict(state.facts(now=7.0))["time left"] == "0:05"  # by the steps since


LIVE_VIEW = """
from pathlib import Path
from pipelinerl.report.console import ConsoleView
from pipelinerl.metrics import MetricsWriter
with ConsoleView(Path("."), 60) as view:
    MetricsWriter(Path("."), "trainer").write(7, lag_mean=1.25, lag_max=4)
    view.update(2)
"""


def test_on_a_terminal_a_live_panel(tmp_path):
    MetricsWriter(tmp_path, "trainer").write(31, lag_mean=9.75)  # of an earlier launch: not shown
    master, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.Popen(
        [sys.executable, "-c", LIVE_VIEW],
        stdout=terminal,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    )
    os.close(terminal)
    seen = b""
    try:
        while chunk := os.read(master, 4096):
            seen += chunk
    except OSError:  # how a pseudo-terminal says that the other end is closed
        os.close(master)
    assert (done.communicate()[1], done.returncode) == (b"", 0)
    assert b"\x1b[" in seen  # colours, and the cursor moved back over the last frame
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "7/60" in text and "mean 1.25  max 4" in text and "2 alive" in text and "9.75" not in text
    assert text.count("pipelinerl") == 3  # drawn for the update, the end, and its last frame


def test_a_warning_is_said_once_and_in_full(tmp_path, capsys):
    writer = MetricsWriter(tmp_path, "trainer")
    with ConsoleView(tmp_path, max_steps=9) as view:
        writer.write(4, loss=0.5, alarm_ess_collapsed=1.0)
        view.update()
        writer.write(5, loss=0.5)
        view.update()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(lines) == 1 and lines[0].startswith(
        "warning: step 4: ess_collapsed: few tokens carry the step"
    )


def test_it_says_once_for_each_reason_that_answers_are_undecided():
    state = RunState(max_steps=10)
    for judged, counts in [(100, (50, 0)), (1000, (10, 11)), (2000, (50, 30))]:
        undecided = dict(zip(("undecided_files_code", "undecided_time_code"), counts, strict=True))
        state.observe("judging", {"time": 0, "step": judged, "busy_share": 0.1} | undecided)
    of_time, of_files = state.warnings
    assert of_time.startswith("warning: 1.1% of the judgements are undecided:time, by verifier code")
    assert of_files.startswith("warning: 2.5% of the judgements are undecided:files, by verifier code")


def test_it_says_once_that_judging_cannot_keep_up():
    state = RunState(max_steps=10)
    for time_s, share in [(0, 0.95), (5, 0.5), (10, 0.95), (60, 1.0), (70, 1.0), (75, 1.0), (80, 0.1)]:
        state.observe("judging", {"time": time_s, "step": 0, "busy_share": share, "waiting": 7})
    assert [warning for warning in state.warnings if "7 answers wait" in warning] == state.warnings
    assert len(state.warnings) == 1
    assert "judging" not in dict(state.facts(now=80.0))
    state.isolation = "sealed"
    assert dict(state.facts(now=80.0))["judging"] == "sealed  busy 10%  waiting 7"


def test_before_the_first_step_it_says_what_is_waited_for(tmp_path, capsys):
    trainer = MetricsWriter(tmp_path, "trainer")
    with ConsoleView(tmp_path, max_steps=5) as view:
        view.update(0)
        view.update(1)
        trainer.write(0, weight_version=0)
        view.update(1)
        trainer.write(1, lag_mean=0.0)
        view.update(1)
    begins = [line.split(":")[0].split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert begins == ["loading", "loaded", "step 1/5"]


def test_the_time_left_knows_what_ends_a_run_sooner_and_equal_rewards_may_be_success():
    state = RunState(max_steps=9, stop_at=0.95)
    for step in range(3):
        state.observe("trainer", {"time": float(step), "step": step})
    equal = {"dropped_zero_advantage": 5, "zero_advantage_solved": 4, "zero_advantage_hopeless": 1}
    state.observe("preprocessor", {"time": 3.0, "step": 2} | equal)
    facts = dict(state.facts(now=2.0))
    assert facts["time left"] == "at most 0:07, less once held-out success is 0.95"
    assert facts["groups dropped"].endswith("; 4 all right, as what is learnt looks, 1 all wrong")
