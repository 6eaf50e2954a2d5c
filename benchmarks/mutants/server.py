"""Serves a mutated copy of the adapters in a process of its own, which has everything else imported."""

import os
import runpy
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.conformance.processes import PRELOAD, fork_server
from contracts.support.token import TOKEN_VARIABLE

PRELOAD += ["fastapi", "uvicorn", "psutil", "coverage"]
CHANNELS = ("--weight-channels", "extensions.stored_weights.channels.StoredChannels")
READY_WITHIN_S = 120
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "secret"


def options_of(adapter: str, model: str) -> list[str]:
    own = ["--model", model, "--max-batch-tokens", "64"] if adapter == "transformers" else []
    return [*CHANNELS, *own]


@contextmanager
def serving(
    copy: Path, adapter: str, options: list[str], first: Callable[[], None] | None = None
) -> Iterator[tuple[str, int]]:
    """Yields the URL and the pid of `python -m inference_adapters.ADAPTER`, run with the adapters in `copy`.

    first: called in the process before it imports the adapter.
    """
    output = Path(tempfile.gettempdir()) / f"mutant-{os.getpid()}-{time.monotonic_ns()}"
    arguments = (copy, f"inference_adapters.{adapter}", options, output, first)
    process = fork_server().Process(target=_serve, args=arguments, daemon=True)
    process.start()
    try:
        url = _first_line(output, process).removeprefix("listening at ").strip()
        _wait_ready(url)
        yield url, process.pid or 0
    finally:
        process.kill()
        process.join()
        output.unlink(missing_ok=True)


def _serve(
    copy: Path, module: str, options: list[str], output: Path, first: Callable[[], None] | None
) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    assert "inference_adapters" not in sys.modules, "the mutated package would not be imported"
    os.environ |= {TOKEN_VARIABLE: TOKEN, "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(copy))
    sys.argv = [module, "--port", "0", *options]
    if first:
        first()
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
