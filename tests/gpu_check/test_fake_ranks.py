"""A rank among others that do not exist holds, gathers and saves what it would among real ones."""

import re

import torch.distributed as dist

from benchmarks.gpu_check.inside import run
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.running import run_part


def figure(pattern: str, lines: list[str]) -> int:
    return int(re.search(pattern, "\n".join(lines))[1].replace(",", ""))


def check(outcome):
    assert outcome.state == "pass", outcome.lines
    parameters = figure(r"gathered ([\d,]+) parameters", outcome.lines)
    assert figure(r"holds ([\d,]+) of", outcome.lines) == parameters / 4
    # Weights and two moments in float32; DeepSpeed deals out complete tensors, of which rank 0 has the first.
    assert figure(r"saved (\d+) KiB", outcome.lines) * 1024 > 12 * parameters / 4


def test_fsdp():
    check(run("fsdp", PARTS["rank-of-four-fsdp"].function, dry=True))
    assert not dist.is_initialized()


def test_deepspeed():
    check(run_part("deepspeed", PARTS["rank-of-four-deepspeed"].function, dry=True))
