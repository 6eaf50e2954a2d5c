"""Inference servers in processes of their own, which a part may kill and stop."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import transformers

from benchmarks.gpu_check.outcomes import FailedError, SkippedError
from contracts.support.ports import ReservedPort
from pipelinerl.paths import ROOT

READY_S = 240.0  # for a server to load


@dataclass(frozen=True)
class Server:
    """A server that was started."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        """Stops the process with its sockets open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def serving(
    folder: Path,
    command: list[str],
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Yields the server that `command` and a port start, once it is ready. Its log is in `folder`."""
    with ReservedPort() as port:
        log = folder / f"server-{port.number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--port", str(port.number)],
                cwd=ROOT,
                env=os.environ | (environment or {}),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        server = Server(f"http://127.0.0.1:{port.number}", process)
        try:
            _wait_ready(server, log)
            yield server
        finally:
            process.kill()
            process.wait()


def _wait_ready(server: Server, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if (status := server.process.poll()) is not None:
            raise FailedError(f"the server ended with status {status}: {last_line(_read(log))}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            return
        time.sleep(0.2)
    raise FailedError(f"the server was not ready within {READY_S:g} s: {last_line(_read(log))}")


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def last_line(text: str) -> str:
    """Returns the last line that is not blank."""
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def transformers_command(model: str, device: str, *options: str) -> list[str]:
    """Returns the command of the transformers adapter. Raises SkippedError where it cannot run."""
    if find_spec("transformers.generation.continuous_batching.cache_allocators") is None:
        version = transformers.__version__
        raise SkippedError(f"the adapter overrides internals of transformers 5.19, which {version} lacks")
    module = "inference_adapters.transformers"
    return [sys.executable, "-m", module, "--model", model, "--device", device, *options]


def engine_python(engine: str) -> str:
    """Returns the Python that has the engine, this one or that of `.venv-<engine>`, and sees a GPU.

    Raises SkippedError if there is none.
    """
    own = str(ROOT / f".venv-{engine}" / "bin" / "python")
    found = [sys.executable] if find_spec(engine) else [own] if Path(own).exists() else []
    if not found:
        raise SkippedError(f"{engine} is not installed, neither here nor in .venv-{engine}")
    look = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([found[0], "-c", look], capture_output=True).returncode:
        raise SkippedError(f"the {engine} that is installed has no torch that sees a GPU")
    return found[0]
