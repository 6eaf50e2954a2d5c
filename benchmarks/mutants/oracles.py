"""The checks that may kill a mutant: first the conformance kit, then the unit tests."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from benchmarks.mutants.lines import SHORT, TRAINER_CHEAPEST_FIRST, Lines, guarantees, in_order
from benchmarks.mutants.server import ROOT, options_of, serving
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.trainer.kit import check_trainer

LONGEST_S = 300  # of one guarantee, which otherwise counts as hanging
TOO_SLOW = re.compile(r"within [\d.]+ s|no end after|did not end|took over|not ready after|too slow")
TRAINER = "trainer_adapters.fsdp.FSDPTrainer"
UNDECIDED = "undecided, for the correct one fails too: "
Check = Callable[[Path, list[str]], tuple[str, str]]  # returns the failing guarantee, and the measurement


def kit_on_server(copy: Path, file: str, line: int, models: dict[str, str], lines: dict[str, Lines]) -> str:
    """Returns the guarantee that the mutated server violates, with the measurement; empty if none.

    Only guarantees that execute the line are tried: on the scripted server if one does there, otherwise on
    the other server.
    """
    for adapter in ("transformers",) if "transformers" in file else ("scripted", "transformers"):
        if codes := guarantees(file, line, lines[adapter]):
            return _sure(copy, codes, partial(_first_failure, adapter, models[adapter]))
    return ""


def kit_on_trainer(copy: Path, file: str) -> str:
    """Returns the guarantee that the mutated trainer violates, with the measurement; empty if none."""
    return _sure(copy, in_order(file, TRAINER_CHEAPEST_FIRST), _first_failure_of_trainer)


def _sure(copy: Path, codes: list[str], check: Check) -> str:
    """Returns the first failure. A timeout counts only if it repeats, and the correct code has none."""
    while True:
        code, failed = check(copy, codes)
        if TOO_SLOW.search(failed):
            again = [code] if code in codes else codes[:1]
            code, failed = check(copy, again)
            if TOO_SLOW.search(failed) and (correct := check(ROOT, again)[1]):
                return f"{code}: {UNDECIDED}{correct}"
            if not failed:
                codes = codes[codes.index(code) + 1 :] if code in codes else codes[1:]
                continue
        return f"{code}: {failed}" if failed else ""


def _first_failure(adapter: str, model: str, copy: Path, codes: list[str]) -> tuple[str, str]:
    try:
        with _within_time(LONGEST_S), serving(copy, adapter, options_of(adapter, model)) as (url, _):
            for code in codes:
                signal.alarm(LONGEST_S)
                (verdict,) = check_inference([url], _reference(model), only=[code], **SHORT)
                if verdict.state == "fail":
                    return code, f"on {adapter}: {verdict.measured}"
        return codes[-1], ""
    except Exception as error:  # a server that does not start, or that hangs
        return "no guarantee can be checked", f"{type(error).__name__}: {error}"


@cache
def _reference(model: str) -> Reference:
    return Reference(model, trust_remote_code=True)


def _first_failure_of_trainer(copy: Path, codes: list[str]) -> tuple[str, str]:
    """Returns the first guarantee that the trainer in `copy` violates, and the measurement.

    The ranks inherit this process's `sys.path`, in which the copy is first.
    """
    sys.path.insert(0, str(copy))
    try:
        for code in codes:
            (verdict,) = check_trainer(TRAINER, ranks=1, only=[code], patience_s=LONGEST_S)
            if verdict.state == "fail":
                return code, verdict.measured
        return codes[-1], ""
    except Exception as error:
        return "no guarantee can be checked", f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(str(copy))
        for name in [name for name in sys.modules if name.startswith("trainer_adapters")]:
            del sys.modules[name]


@contextlib.contextmanager
def _within_time(seconds: int) -> Iterator[None]:
    signal.signal(signal.SIGALRM, _raise)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _raise(*_: object) -> None:
    raise TimeoutError(f"it took over {LONGEST_S} s")


def unit_tests(copy: Path, tests: list[str]) -> str:
    """Returns the first test that fails; empty if none does."""
    status, output = _run(copy, "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"status {status}" if status else ""


def _run(copy: Path, module: str, *arguments: str) -> tuple[int, str]:
    """Runs `python -m module` in the copy, and ends all processes that it started."""
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
        output = process.communicate(timeout=2 * LONGEST_S)[0]
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return 1, f"it took over {2 * LONGEST_S} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
