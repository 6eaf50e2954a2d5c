"""What may kill a mutant: the conformance kit first, then the unit tests."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.mutants.server import serving
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference

TOKEN = "secret"
SHORT = {"token": TOKEN, "timeout_s": 1.0, "grace_s": 2.0, "answer_s": 15.0, "updates": 8}
CHEAPEST_FIRST = ["G9", "G3", "G5", "G10", "G1", "G2", "G11", "G4", "G6", "G8", "G7"]
LONGEST_S = 600  # what takes longer hangs
TOO_SLOW = re.compile(r"within [\d.]+ s|no end after|did not end")
FSDP = ["trainer", "--adapter", "trainer_adapters.fsdp.FSDPTrainer", "--ranks", "1", "--json"]


def kit_on_server(copy: Path, file: str, models: dict[str, str]) -> str:
    """Returns the guarantee that the mutated server fails, with what was measured; empty if it keeps all."""
    adapter = "transformers" if "transformers" in file else "scripted"
    failed = _kit_within_time(copy, adapter, models)
    if TOO_SLOW.search(failed):  # perhaps the machine is busy
        failed = _kit_within_time(copy, adapter, models)
    return failed


def _kit_within_time(copy: Path, adapter: str, models: dict[str, str]) -> str:
    signal.signal(signal.SIGALRM, _raise)
    signal.alarm(LONGEST_S)
    try:
        return _first_failure(copy, adapter, models)
    except Exception as error:  # a server that does not start, or that hangs
        return f"no guarantee can be checked: {type(error).__name__}: {error}"
    finally:
        signal.alarm(0)


def _raise(*_: object) -> None:
    raise TimeoutError(f"it took over {LONGEST_S} s")


def _first_failure(copy: Path, adapter: str, models: dict[str, str]) -> str:
    options = ["--model", models[adapter], "--max-batch-tokens", "64"] if adapter == "transformers" else []
    reference = Reference(models[adapter], trust_remote_code=True)
    with serving(copy, f"inference_adapters.{adapter}", options, TOKEN) as url:
        for code in CHEAPEST_FIRST:
            (verdict,) = check_inference([url], reference, only=[code], **SHORT)
            if verdict.state == "fail":
                return f"{code}: {verdict.measured}"
    return ""


def kit_on_trainer(copy: Path) -> str:
    """Returns the guarantee that the mutated trainer fails, with what was measured; empty if it keeps all."""
    status, output = _run(copy, "contracts.conformance", *FSDP)
    try:
        verdicts = json.loads(output[output.index("{") :])["guarantees"]
    except ValueError:
        return f"no verdict: status {status}: {output[-300:]}"
    failed = [verdict for verdict in verdicts if verdict["verdict"] == "fail"]
    return f"{failed[0]['guarantee']}: {failed[0]['measured']}" if failed else ""


def unit_tests(copy: Path, tests: list[str]) -> str:
    """Returns the first test that fails; empty if none does."""
    status, output = _run(copy, "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"status {status}" if status else ""


def _run(copy: Path, module: str, *arguments: str) -> tuple[int, str]:
    """Runs `python -m module` in the copy, and ends all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=copy,
        env=os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output = process.communicate(timeout=LONGEST_S)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return 1, f"it took over {LONGEST_S} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
