"""One fresh process per rank, from a fork server that has torch and transformers imported already.

A rank runs a program, `program(worker, spec, *args)`, and what it returns travels back in a file. The
first rank that raises or dies, or that outlives the patience, ends them all.
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

import torch

from contracts.conformance.processes import fork_server
from contracts.conformance.trainer.rank import run_rank
from contracts.trainer import WorkerSpec


class RankFailed(Exception):
    """One rank raised, died or did not end; the message says which, where and why."""


def run_ranks(
    folder: Path,
    adapter: str,
    options: dict[str, object],
    specs: list[WorkerSpec],
    program: Callable[..., object],
    args: tuple[object, ...],
    patience_s: float,
) -> list[Any]:
    """What `program` returned on each rank. Raises RankFailed; no process outlives the call."""
    context = fork_server()
    processes = [
        context.Process(target=run_rank, args=(folder, adapter, options, spec, program, args))
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
        except BrokenPipeError:  # its end came before it had read what to do
            raise RankFailed(f"rank {rank} died before it could import the program") from None


def _wait(processes: list[Any], folder: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    running = dict(enumerate(processes))
    while running:
        ended = wait([p.sentinel for p in running.values()], max(0.0, deadline - time.monotonic()))
        if not ended:
            where = "; ".join(f"rank {rank} is {_where(folder, rank)}" for rank in running)
            raise RankFailed(f"not every rank ended within {patience_s:g} s: {where}")
        for rank in [rank for rank, process in running.items() if process.sentinel in ended]:
            running.pop(rank).join()
        if failed := [rank for rank in range(len(processes)) if _failed(folder, rank, processes[rank])]:
            raise RankFailed(_story(folder, failed, processes))


def _failed(folder: Path, rank: int, process: multiprocessing.process.BaseProcess) -> bool:
    """Also where it ended quietly, without a result."""
    code = process.exitcode
    return code is not None and (code != 0 or not (folder / f"{rank}.result").exists())


def _story(folder: Path, failed: list[int], processes: list[Any]) -> str:
    """Of the rank that failed first: the others may only have lost their peer."""
    errors = {rank: folder / f"{rank}.error" for rank in range(len(processes))}
    told = [rank for rank, file in errors.items() if file.exists()]
    silent = [rank for rank in failed if rank not in told]
    if silent:
        rank, code = silent[0], processes[silent[0]].exitcode
        died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"rank {rank} {died} {_where(folder, rank)}"
    rank = min(told, key=lambda rank: errors[rank].stat().st_mtime_ns)
    return f"rank {rank} raised {_where(folder, rank)}: {errors[rank].read_text()}"


def _where(folder: Path, rank: int) -> str:
    told = folder / f"{rank}.told"
    return told.read_text() if told.exists() else "being started"


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    """With the processes that the rank itself has started: it leads a process group."""
    if process.pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
