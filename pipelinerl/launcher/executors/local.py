"""The executor of one machine: every job runs behind a guard, which is a child of this process.

Python jobs without a GPU are forked from this process; the others are started as commands.
"""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from contracts.support.addresses import LOOPBACK, in_url
from contracts.support.ports import ReservedPort
from pipelinerl.config import RunConfig, Section
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import (
    Capacity,
    Ended,
    Executor,
    Fate,
    Placed,
    Process,
    Running,
    Slot,
    Want,
    node_environment,
)
from pipelinerl.launcher.executors.forked_job import can_be_forked, fork_job, preload
from pipelinerl.paths import OWNER_ALONE

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
NODE = "this machine"
PATIENCE_S = 15.0  # time for a guard to end; longer than the guard's own LONGEST_KILL_S


@dataclass
class _Job:
    slot: Slot
    port: ReservedPort | None
    gpus: list[str]
    guard: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """Closes the guard's pipe, whereupon the guard kills the remaining processes."""
        if self.guard and self.guard.stdin:
            self.guard.stdin.close()


class LocalExecutor(Executor):
    """The executor of one machine. gpus: the GPUs for jobs, in the notation of CUDA_VISIBLE_DEVICES."""

    address = LOOPBACK

    def __init__(self, gpus: Sequence[str] = ()):
        self._all_gpus = list(gpus)
        self._free_gpus = list(gpus)
        self._jobs: dict[str, _Job] = {}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        servers = config.world.servers + (config.reference is not None)
        needed = servers * config.inference.gpus_per_server + config.world.trainer_ranks
        if config.world.gpus and needed > config.world.gpus:
            raise PlanError(f"the plan needs {needed} GPUs and world.gpus is {config.world.gpus}")

    @classmethod
    def of(cls, config: RunConfig, options: Section) -> "LocalExecutor":
        return cls(visible_gpus(config))

    def capacity(self, wants: Iterable[Want]) -> Capacity:
        needed = sum(want.gpus for want in wants)
        gpus = len(self._all_gpus)
        return Capacity(f"{NODE}: {os.cpu_count()} CPUs, {gpus} GPUs", [], [f"{needed} GPUs are needed"])

    def ask(self, wants: Iterable[Want]) -> None:
        for want in wants:
            if want.gpus > len(self._free_gpus):
                raise PlanError(
                    f"{want.name} needs {want.gpus} GPUs, and {len(self._free_gpus)} are free on {NODE}"
                )
            port = _reserved(want)
            gpus = self._free_gpus[: want.gpus]
            del self._free_gpus[: want.gpus]
            slot = Slot(NODE, LOOPBACK, port.number if port else None, ",".join(gpus))
            self._jobs[want.name] = _Job(slot, port, gpus)

    def look(self) -> Mapping[str, Fate]:
        return {name: _fate(job) for name, job in self._jobs.items()}

    def start(self, name: str, process: Process) -> None:
        process.log.parent.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
        job = self._jobs[name]
        job.kill()
        order = _order(process)
        with process.log.open("ab") as log:
            if can_be_forked(process, order["environment"]):
                preload()
                job.guard = _guard_of_fork(log, order)
            else:
                job.guard = _guard(log)
        job.guard.stdin.write(json.dumps(order).encode() + b"\n")
        job.guard.stdin.flush()

    def end(self, names: Iterable[str]) -> None:
        for name in names:
            guard = self._jobs[name].guard
            if guard and guard.poll() is None:
                guard.send_signal(signal.SIGTERM)

    def drop(self, names: Iterable[str]) -> None:
        dropped = [self._jobs.pop(name) for name in names]
        for job in dropped:
            job.kill()
        for job in dropped:
            if job.guard:
                _wait(job.guard)
            if job.port:
                job.port.release()
            self._free_gpus += job.gpus

    def close(self) -> None:
        self.drop([*self._jobs])


def visible_gpus(config: RunConfig) -> list[str]:
    """Returns the GPUs of this machine that jobs may have. A plan has those of the machine it is made for."""
    named = None if config.plan else os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(config.world.gpus)]
    if len(visible) < config.world.gpus:
        raise PlanError(f"world.gpus={config.world.gpus}, but CUDA_VISIBLE_DEVICES={named}")
    return visible[: config.world.gpus]


def _guard(log: BinaryIO, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        GUARD,
        env={},
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **options,
    )


def _guard_of_fork(log: BinaryIO, order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Starts a guard that has forked the job before it became the guard. Completes the guard's order."""
    output, prints = os.pipe()
    told, tells = os.pipe()

    def fork() -> None:
        os.write(tells, str(fork_job(order["command"], order["environment"], prints)).encode())

    try:
        guard = _guard(log, pass_fds=[output], preexec_fn=fork)
    except subprocess.SubprocessError as error:
        raise OSError("the job cannot be forked") from error
    finally:
        os.close(prints)
        os.close(tells)
        job = os.read(told, 32)  # empty if the guard has ended before it could tell
        os.close(told)
        os.close(output)
    if not job:
        raise OSError("the job's guard was killed")
    order |= {"job": int(job), "output": output}
    return guard


def _order(process: Process) -> dict[str, Any]:
    own = {} if process.has_whole_environment else node_environment(os.environ)
    return {
        "command": process.command,
        "environment": own | process.environment,
        "grace_s": process.grace_s,
        "ends_if_stopped": process.ends_if_stopped,
        "log": str(process.log),
        "log_bytes": process.log_bytes,
    }


def _fate(job: _Job) -> Fate:
    if job.guard is None:
        return Placed(job.slot)
    status = job.guard.poll()
    return Running(job.slot) if status is None else Ended(job.slot, status)


def _reserved(want: Want) -> ReservedPort | None:
    if want.port is None:
        return None
    address = want.host or LOOPBACK
    try:
        return ReservedPort(address, want.port)
    except OSError as error:
        key = want.port_key if error.errno == errno.EADDRINUSE else want.host_key
        raise PlanError(
            f"{want.name} cannot listen at {in_url(address)}:{want.port}: {error.strerror}; set "
            f"{key} to another, or leave it out"
        ) from error


def _wait(guard: subprocess.Popen[bytes]) -> None:
    """Waits for a guard's end. Kills a guard that itself waits for a process that the kernel cannot end."""
    try:
        guard.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        guard.kill()
