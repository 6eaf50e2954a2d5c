"""What processes of a run import: no tracker, no Ray, and the launcher no part that only its checks need."""

import subprocess
import sys

import pytest

from pipelinerl.paths import ROOT
from tests.loaded import loaded
from tests.pipeline.runs import MINIATURE

PROGRAM = """
import sys
import launch
status = launch.main(sys.argv[1:])
import pipelinerl.launcher.supervising.supervisor, pipelinerl.report.console
names = {"matplotlib", "torch", "tests.scripted_domain", "inference_adapters", "trainer_adapters"}
print(status, *sorted(names & sys.modules.keys()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux are the checks in another process")
def test_the_launcher_imports_no_part_of_the_run(tmp_path):
    """The run is refused when its servers get their places, which is after the checks."""
    settings = (*MINIATURE, f"run_dir={tmp_path}/run", "inference.host=203.0.113.1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *settings], cwd=ROOT, capture_output=True, text=True
    )
    assert "server-0 cannot listen at 203.0.113.1:0: " in done.stderr
    assert "set inference.host to another" in done.stderr
    assert done.stdout.split() == ["2"]


MOST_LINES = 13_740  # of the project, in the trainer of the demo


def test_the_trainer_loads_what_it_needs():
    """PyTorch itself imports zstandard."""
    lines, packages = loaded("trainer")
    assert lines <= MOST_LINES
    assert not {"cryptography", "extensions", "fastapi", "ray", "redis"} & packages


def test_no_process_of_a_local_run_imports_a_tracker_or_ray():
    """The launcher, its jobs and the trainer's adapters, with what they import at their start."""
    modules = ["launch", "pipelinerl.actor", "pipelinerl.preprocessor", "pipelinerl.trainer"]
    modules += [
        "pipelinerl.judging.__main__",
        "pipelinerl.launcher.supervising.supervisor",
        "pipelinerl.launcher.checking.components",
    ]
    modules += ["pipelinerl.launcher.executors.local", "trainer_adapters.fsdp", "trainer_adapters.scripted"]
    modules += ["inference_adapters.serve"]
    code = (
        f"import sys, importlib\nfor name in {modules}: importlib.import_module(name)\n"
        "print(sorted({'wandb', 'trackio', 'tensorboard', 'ray'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
