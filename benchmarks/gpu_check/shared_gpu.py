"""Runs launch.py with one GPU under two names: a server and a trainer rank each have a place on it.

With CUDA_VISIBLE_DEVICES=0,0 torch sees none in this process, and each job that gets a name sees the GPU.
"""

import runpy
import sys

import torch

from pipelinerl.paths import ROOT

LAUNCH = str(ROOT / "launch.py")

if __name__ == "__main__":
    torch.cuda.device_count = lambda: 2
    sys.argv[0] = LAUNCH
    runpy.run_path(LAUNCH, run_name="__main__")
