"""Runs from Python: what they return and raise, what an interruption leaves, and the notebook."""

import json
import signal
import subprocess
import sys

import pytest

import pipelinerl
from benchmarks.run_processes import processes_of
from pipelinerl.launcher.from_python import _words
from pipelinerl.paths import ROOT
from tests.pipeline.runs import MINIATURE, wait_for

PROGRAM = """
import sys
import pipelinerl
pipelinerl.run(*sys.argv[2:], run_dir=sys.argv[1], max_steps=100_000)
"""


def test_a_run_returns_its_summary_and_tells_its_progress(tmp_path):
    lines = []
    run_dir = tmp_path / "it's a run"
    summary = pipelinerl.run(*MINIATURE, run_dir=run_dir, max_steps=2, progress=lines.append)
    assert summary == json.loads((run_dir / "summary.json").read_text()) | {"run_dir": str(run_dir)}
    assert summary["optimizer_steps"] == 2
    assert f"run directory: {run_dir}" in lines


def test_a_refused_run_raises_what_the_launcher_says(tmp_path):
    with pytest.raises(
        pipelinerl.RunFailedError, match="unknown configuration key .* did you mean max_steps"
    ):
        pipelinerl.run(*MINIATURE, run_dir=tmp_path / "run", max_stps=2, progress=lambda line: None)


def test_values_are_written_as_the_command_line_has_them():
    settings = {"a": None, "b": {"c": True, "d": 1e-4}, "e": ["x y", 2], "f": "it's"}
    assert [*_words(settings)] == ["a=null", "b.c=true", "b.d=0.0001", "e=['x y',2]", r"f='it\'s'"]
    classes = {"filters": [{"_target_": "a.B", "c": 1}], "domain": {"_target_": "d.E"}}
    assert [*_words(classes)] == ["filters=[{_target_:'a.B',c:1}]", "~domain", "+domain={_target_:'d.E'}"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_program_ends_all_processes(tmp_path, number):
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, str(run_dir), *MINIATURE]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not program.stdout.readline().startswith("step 1/"):
        assert program.poll() is None
    program.send_signal(number)
    output, errors = program.communicate()
    if number == signal.SIGINT:
        assert errors.endswith("KeyboardInterrupt\n") and "resume=true" in output
    wait_for(lambda: not processes_of(run_dir))


def test_the_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert names["summary"]["optimizer_steps"] == 4
    assert names["rollout"].expected and names["rollout"].reason
