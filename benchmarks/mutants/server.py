"""Serves a mutated copy of the adapters in a process of its own, which has everything else imported."""

import os
import runpy
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.conformance.processes import PRELOAD, fork_server
from contracts.support.token import TOKEN_VARIABLE

PRELOAD += ["fastapi", "uvicorn", "psutil"]
READY_WITHIN_S = 60


@contextmanager
def serving(copy: Path, module: str, options: list[str], token: str) -> Iterator[str]:
    """Yields the URL of `python -m module`, run with the packages in `copy`."""
    output = copy / f"output-{time.monotonic_ns()}"
    process = fork_server().Process(target=_serve, args=(copy, module, options, token, output), daemon=True)
    process.start()
    try:
        url = _first_line(output, process).removeprefix("listening at ").strip()
        _wait_ready(url)
        yield url
    finally:
        process.kill()
        process.join()


def _serve(copy: Path, module: str, options: list[str], token: str, output: Path) -> None:
    assert "inference_adapters" not in sys.modules, "the mutated package would not be imported"
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ |= {TOKEN_VARIABLE: token, "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    sys.argv = [module, "--port", "0", *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _first_line(output: Path, process) -> str:
    while True:
        text = output.read_text() if output.exists() else ""
        if text.startswith("listening at ") and "\n" in text:
            return text.splitlines()[0]
        if process.exitcode is not None:
            raise ConnectionError(f"the server did not start: {(text.splitlines() or [''])[-1]}")
        time.sleep(0.02)


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError) as error:
            if time.monotonic() > deadline:
                raise ConnectionError(f"not ready after {READY_WITHIN_S} s: {error}") from error
        time.sleep(0.05)
