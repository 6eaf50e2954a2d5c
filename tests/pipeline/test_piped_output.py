"""A run whose output is a pipe says each step and each evaluation in one line, without control characters."""

import re
import subprocess
import sys

from contracts.records import Evaluated
from pipelinerl.paths import ROOT
from tests.limits import HANG_S
from tests.pipeline.runs import MINIATURE, records

STEPS = 12


def test_each_step_and_each_evaluation_is_one_line_in_a_pipe(tmp_path):
    command = [sys.executable, "launch.py", f"run_dir={tmp_path}/run", *MINIATURE]
    command += [f"max_steps={STEPS}", "eval.every=4"]
    environment = {"PATH": "/usr/bin:/bin", "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=HANG_S)
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    lines = text.splitlines()
    steps = [line for line in lines if line.startswith("step ") and " | " in line]
    assert [line.split(" | ")[0] for line in steps] == [f"step {n}/{STEPS}" for n in range(1, STEPS + 1)]
    assert all(
        re.search(r"\| lag mean \d.* \| groups dropped .* \| time left (at most )?\d", line) for line in steps
    )
    told = [line for line in lines if line.startswith("evaluation of version")]
    evaluated = [
        record for record in records(tmp_path / "run", "actor_events") if isinstance(record, Evaluated)
    ]
    assert len(evaluated) >= 2
    assert [float(re.search(r"success ([\d.]+)", line)[1]) for line in told] == [
        round(result.success, 3) for result in evaluated
    ]
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f]", "\n".join([*steps, *told])) == []
    assert "\x1b[?25" not in text and "\r" not in text and "\x1b[1A" not in text
