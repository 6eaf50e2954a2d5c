"""The inference kit on the engines of this project; dry, one guarantee of the transformers adapter."""

import secrets
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.outcomes import SkippedError
from benchmarks.gpu_check.servers import engine_python, serving, transformers_command
from benchmarks.gpu_check.verdicts import side_by_side
from contracts.conformance.inference.kit import CODES, check_inference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.conformance.verdicts import Verdict
from contracts.support.token import TOKEN_VARIABLE

CHANNELS = ("--weight-channels", "extensions.stored_weights.channels.StoredChannels")
BFLOAT16 = {"dtype": "bfloat16", "tolerance": 0.2}
VLLM = ["--dtype", "bfloat16", "--enforce-eager", "--gpu-memory-utilization", "0.3"]
SGLANG = ["--dtype", "bfloat16", "--mem-fraction-static", "0.3"]
LARGE_AT_ONCE = 3  # servers of vLLM or SGLang: each takes 0.3 of the GPU's memory
SMALL_AT_ONCE = 6  # servers of transformers: each takes a few gigabytes


def transformers(dry: bool) -> list[str]:
    """Checks the adapter in float32, every guarantee."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model")
        command = transformers_command(model, device_of(dry), *CHANNELS)
        return _check(Path(folder), command, model, ["G1"] if dry else CODES, SMALL_AT_ONCE)


def vllm(dry: bool) -> list[str]:
    return _check_installed("vllm", VLLM, dry)


def sglang(dry: bool) -> list[str]:
    return _check_installed("sglang", SGLANG, dry)


def _check_installed(engine: str, options: Sequence[str], dry: bool) -> list[str]:
    if dry:
        raise SkippedError(f"no dry run of {engine}: make test-engines has the kit on its build for CPUs")
    python = engine_python(engine)
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model")
        command = [python, "-m", f"inference_adapters.{engine}", "--model", model, *CHANNELS, *options]
        return _check(Path(folder), command, model, CODES, LARGE_AT_ONCE, **BFLOAT16)


def _check(
    folder: Path, command: list[str], model: str, codes: Sequence[str], at_once: int, **settings: Any
) -> list[str]:
    check = partial(_check_one, folder, command, model, secrets.token_hex(8), settings)
    return side_by_side(check, codes, at_once)


def _check_one(
    folder: Path, command: list[str], model: str, token: str, settings: dict[str, Any], code: str
) -> list[Verdict]:
    """Checks one guarantee on a server of its own."""
    with serving(folder, command, {TOKEN_VARIABLE: token}) as server:
        return check_inference([server.url], model, only=[code], token=token, **settings)
