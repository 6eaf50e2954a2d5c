"""Runs launch.py with one GPU under two names: a server and a trainer rank each have a place on it.

With CUDA_VISIBLE_DEVICES=0,0 torch sees none in this process, and each job that gets a name sees the GPU.
"""

import runpy
import sys

import torch

from pipelinerl.paths import ROOT

COMMAND = (sys.executable, "-c", f"from {__name__} import launch; launch()")  # and the settings


def launch() -> None:
    """Runs launch.py with the arguments of this process."""
    torch.cuda.device_count = lambda: 2
    sys.argv[0] = str(ROOT / "launch.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
