"""What a table says of the machine and the code it was made with."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from importlib.util import find_spec

import torch

from contracts.support.sizes import describe_bytes
from contracts.weights import nccl_version
from pipelinerl.paths import ROOT
from trainer_adapters.flash_attention import has_flash_attention_3


def device_of(dry: bool) -> str:
    """Returns the device on which a part works."""
    return "cpu" if dry else "cuda"


def device_name() -> str:
    """Returns the name of the first GPU, or that of the processor's architecture."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU, {platform.machine()}"


def title(dry: bool) -> str:
    """Returns the heading of a table: what it was measured on, when, and with which commit."""
    kind = "dry: " if dry else ""
    return f"{kind}{device_name()}, {time.strftime('%Y-%m-%d', time.gmtime())}, commit {commit()}"


def versions() -> str:
    """Returns the versions and sizes that a measurement depends on."""
    found = [f"torch {torch.__version__}"]
    if torch.cuda.is_available():
        memory = describe_bytes(torch.cuda.get_device_properties(0).total_memory)
        found += [f"CUDA {torch.version.cuda}", f"NCCL {nccl_version()}"]
        found += [f"{torch.cuda.device_count()} GPU(s) of {memory}"]
        found += ["FlashAttention-3"] * has_flash_attention_3(torch.device("cuda"))
    found += [f"DeepSpeed {version('deepspeed')}"] * bool(find_spec("deepspeed"))
    return ", ".join(
        [*found, f"transformers {version('transformers')}", f"Python {platform.python_version()}"]
    )


def commit() -> str:
    """Returns the commit of this checkout. A copy without its history is told by the variable COMMIT."""
    if given := os.environ.get("COMMIT"):
        return given
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
