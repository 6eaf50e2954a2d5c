"""The main function of one rank's process: it makes the worker, runs the program and writes the result."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.conformance.trainer.recording_worker import RecordingWorker, import_adapter
from contracts.trainer import WorkerSpec

ENDINGS = ("partial", "result", "error")  # files that a rank writes once it needs no other
OTHERS_S = 10.0  # a rank that needs no other waits this long for them


@dataclass(frozen=True)
class Refusal:
    """The result of a rank whose worker refused the model with a ValueError."""

    message: str


def run_rank(
    folder: Path,
    adapter: str,
    options: dict[str, object],
    spec: WorkerSpec,
    program: Callable[..., object],
    args: tuple[object, ...],
    may_refuse: bool = False,
) -> None:
    """Runs `program` on a new worker, and writes files to `folder`. The process ends after `close`.

    RANK.result has the result of `program`, RANK.error the last line of its error, RANK.position its current
    contract call, and RANK.log its output.
    """
    gc.freeze()  # otherwise the collector copies the memory of all imported modules
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _redirect_output(folder / f"{spec.rank}.log")
    torch.set_num_threads(1)
    try:
        worker = RecordingWorker(import_adapter(adapter)(**options), folder / f"{spec.rank}.position")
        if refusal := _start(worker, spec, may_refuse):
            torch.save(refusal, folder / f"{spec.rank}.result")
            _outlast_others(folder, spec.world_size)
            os._exit(0)
        result = program(worker, spec, *args)
        torch.save(result, folder / f"{spec.rank}.partial")
        _outlast_others(folder, spec.world_size)
        worker.close()
        (folder / f"{spec.rank}.partial").rename(folder / f"{spec.rank}.result")
        os._exit(0)  # ends all threads: work that close() has not finished is lost
    except BaseException as error:
        last = str(error).strip().splitlines()[-1:]
        (folder / f"{spec.rank}.error").write_text(": ".join([type(error).__name__, *last]))
        raise


def _start(worker: RecordingWorker, spec: WorkerSpec, may_refuse: bool) -> Refusal | None:
    try:
        worker.init_worker(spec)
    except ValueError as error:
        if not may_refuse:
            raise
        return Refusal(str(error))
    return None


def _outlast_others(folder: Path, ranks: int) -> None:
    """Waits for the other ranks: one that has not refused or run yet may still be connecting to this one."""
    deadline = time.monotonic() + OTHERS_S
    endings = [[folder / f"{rank}.{kind}" for kind in ENDINGS] for rank in range(ranks)]
    while time.monotonic() < deadline and not all(any(f.exists() for f in ending) for ending in endings):
        time.sleep(0.02)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # a rank is never the main process
    parent.join()
    os.killpg(os.getpid(), signal.SIGKILL)


def _redirect_output(log: Path) -> None:
    """Redirects the backend's output to a file, because it does not belong in the table."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
