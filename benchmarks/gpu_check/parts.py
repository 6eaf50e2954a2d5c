"""The parts by name, in the order in which they run: each a function `check(dry)` that returns lines.

A function raises SkippedError where its part cannot be tried, and FailedError where something does not hold.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.gpu_check.table import ROW


class Part(NamedTuple):
    """A part, and how long it takes on one H100 or H200."""

    function: str  # MODULE:FUNCTION
    minutes: float


def _part(function: str, minutes: float) -> Part:
    return Part(f"benchmarks.gpu_check.{function}", minutes)


PARTS = {
    "rank-of-four-deepspeed": _part("rank_of_four:deepspeed", 2.5),
    "rank-of-four-fsdp": _part("rank_of_four:fsdp", 2.5),
    "real-model": _part("real_model:check", 5),
    "colocated": _part("real_model:in_turns", 6),
    "varlen": _part("varlen:check", 0.5),
    "nccl": _part("nccl:check", 1),
    "trainer-kit-fsdp": _part("trainer_kits:fsdp", 2.5),
    "trainer-kit-deepspeed": _part("trainer_kits:deepspeed", 4),
    "trainer-kit-deepspeed-zero3": _part("trainer_kits:deepspeed_of_stage_3", 4),
    "trainer-kit-fsdp-2-ranks": _part("trainer_kits:fsdp_of_two_ranks", 4),
    "trainer-kit-deepspeed-2-ranks": _part("trainer_kits:deepspeed_of_two_ranks", 4),
    "inference-kit-transformers": _part("inference_kits:transformers", 9),
    "inference-kit-vllm": _part("inference_kits:vllm", 9),
    "inference-kit-sglang": _part("inference_kits:sglang", 9),
    "publication-gloo": _part("publication:over_gloo", 2.5),
    "publication-ipc": _part("publication:over_ipc", 2.5),
    "publication-nccl": _part("publication:over_nccl", 2.5),
    "head": _part("head:check", 0.5),
    "train-0.5b": _part("training:half_a_billion", 1.5),
    "train-1.5b": _part("training:one_and_a_half_billion", 2),
    "generate-0.5b": _part("generation:check", 2.5),
}


def unmeasured_first(parts: Mapping[str, Part], page: str) -> list[str]:
    """Returns the names in their order, but last those that passed on a GPU in a table of `page`."""
    return sorted(parts, key=passed_in(page).__contains__)


def passed_in(page: str) -> set[str]:
    """Returns the names of the parts that passed on a GPU in a table of `page`."""
    _, *sections = re.split("^### ", page, flags=re.MULTILINE)
    on_a_gpu = "".join(each for each in sections if not each.startswith("dry: "))
    return {row[1] for row in ROW.finditer(on_a_gpu) if "| pass |" in row[0]}
