"""The inference kit on the engines of this project; dry, one guarantee of the transformers adapter."""

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.machine import device_of
from benchmarks.gpu_check.outcomes import SkippedError
from benchmarks.gpu_check.servers import engine_python, serving, transformers_command
from benchmarks.gpu_check.verdicts import lines_of
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE

BFLOAT16 = {"dtype": "bfloat16", "tolerance": 0.2}
VLLM = ["--dtype", "bfloat16", "--enforce-eager", "--gpu-memory-utilization", "0.3"]
SGLANG = ["--dtype", "bfloat16", "--mem-fraction-static", "0.3"]


def transformers(dry: bool) -> list[str]:
    """Checks the adapter in float32, every guarantee."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model")
        command = transformers_command(model, device_of(dry))
        return _check(Path(folder), command, model, only=["G1"] if dry else None)


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
        command = [python, "-m", f"inference_adapters.{engine}", "--model", model, *options]
        return _check(Path(folder), command, model, **BFLOAT16)


def _check(folder: Path, command: list[str], model: str, **settings: Any) -> list[str]:
    token = secrets.token_hex(8)
    with serving(folder, command, {TOKEN_VARIABLE: token}) as server:
        return lines_of(check_inference([server.url], model, token=token, **settings))
