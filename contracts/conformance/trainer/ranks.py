"""Starts one new process per rank, from a fork server that has already imported its modules.

A rank runs `program(worker, spec, *args)`, and returns its result in a file. The first rank that raises, dies
or exceeds the time limit ends them all.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import torch

from contracts.conformance.processes import fork_server
from contracts.conformance.trainer.rank import run_rank
from contracts.trainer import WorkerSpec


class RankFailedError(Exception):
    """One rank raised, died or did not end. The message says which one, where and why."""


def run_ranks(
    folder: Path,
    adapter: str,
    options: dict[str, object],
    specs: list[WorkerSpec],
    program: Callable[..., object],
    args: tuple[object, ...],
    patience_s: float,
    may_refuse: bool = False,
) -> list[Any]:
    """Returns the results of `program` by rank. Raises RankFailedError; no process outlives the call."""
    context = fork_server()
    processes = [
        context.Process(target=run_rank, args=(folder, adapter, options, spec, program, args, may_refuse))
        for spec in specs
    ]
    try:
        _start(processes)
        _wait(processes, folder, patience_s)
        return [torch.load(folder / f"{spec.rank}.result", weights_only=False) for spec in specs]
    finally:
        for process in processes:
            _kill(process)


def _start(processes: list[Any]) -> None:
    for rank, process in enumerate(processes):
        try:
            process.start()
        except BrokenPipeError:  # the process ended before it had read its arguments
            raise RankFailedError(f"rank {rank} died before it could import the program") from None


def _wait(processes: list[Any], folder: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    running = dict(enumerate(processes))
    while running:
        ended = wait([p.sentinel for p in running.values()], max(0.0, deadline - time.monotonic()))
        if not ended:
            where = "; ".join(f"rank {rank} is {_where(folder, rank)}" for rank in running)
            raise RankFailedError(f"not every rank ended within {patience_s:g} s: {where}")
        for rank in [rank for rank, process in running.items() if process.sentinel in ended]:
            running.pop(rank).join()
        if any(_failed(folder, rank, processes[rank]) for rank in range(len(processes))):
            for process in filter(_is_gone, running.values()):
                process.join()  # its status may come after the error of a rank that has lost it
            failed = [rank for rank in range(len(processes)) if _failed(folder, rank, processes[rank])]
            raise RankFailedError(_describe_failure(folder, failed, processes))


def _failed(folder: Path, rank: int, process: multiprocessing.process.BaseProcess) -> bool:
    """Returns True if the rank has ended with an error, or without a result."""
    code = process.exitcode
    return code is not None and (code != 0 or not (folder / f"{rank}.result").exists())


def _is_gone(process: multiprocessing.process.BaseProcess) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _describe_failure(folder: Path, failed: list[int], processes: list[Any]) -> str:
    """Describes the rank that failed first. The others may only have lost their peer."""
    errors = {rank: folder / f"{rank}.error" for rank in range(len(processes))}
    with_error = [rank for rank, file in errors.items() if file.exists()]
    without_error = [rank for rank in failed if rank not in with_error]
    if without_error:
        rank = without_error[0]
        code = processes[rank].exitcode
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"rank {rank} {died} {_where(folder, rank)}"
    rank = min(with_error, key=lambda rank: errors[rank].stat().st_mtime_ns)
    return f"rank {rank} raised {_where(folder, rank)}: {errors[rank].read_text()}"


def _where(folder: Path, rank: int) -> str:
    position = folder / f"{rank}.position"
    return position.read_text() if position.exists() else "being started"


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    """Kills the rank and the processes that it has started; it leads a process group."""
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
