"""The executor of one machine. Each job has a guard; Python jobs without a GPU are forked, others started."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
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
    JobState,
    Placed,
    Placement,
    Process,
    ResourceRequest,
    Running,
    node_environment,
)
from pipelinerl.launcher.executors.forked_job import can_be_forked, fork_job, preload
from pipelinerl.paths import OWNER_ALONE

GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))
NODE = "this machine"
GUARD_END_S = 15.0  # longest wait for a guard to end; longer than the guard's LONGEST_KILL_S


@dataclass
class _Job:
    placement: Placement
    port: ReservedPort | None
    gpus: list[str]
    free_gpus: list[str]  # where its GPUs go when it is released
    guard: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """Closes the guard's pipe, so that the guard kills the remaining processes."""
        if self.guard and self.guard.stdin:
            self.guard.stdin.close()


class LocalExecutor(Executor):
    """The executor of one machine. gpus: the GPUs for jobs, in the notation of CUDA_VISIBLE_DEVICES."""

    address = LOOPBACK

    def __init__(self, gpus: Sequence[str] = ()):
        self._all_gpus = list(gpus)
        self._free_gpus: dict[str, list[str]] = {}  # by pool
        self._jobs: dict[str, _Job] = {}

    @classmethod
    def check(cls, config: RunConfig) -> None:
        world = config.world
        servers = world.servers + (config.reference is not None)
        of_servers = servers * config.inference.gpus_per_server
        shared = max(of_servers, world.trainer_ranks)
        needed = shared if world.share_gpus else of_servers + world.trainer_ranks
        if not world.gpus or needed <= world.gpus:
            return
        refusal = f"the plan needs {needed} GPUs and world.gpus is {world.gpus}"
        if world.share_gpus:
            refusal += "; raise it, or have fewer world.servers (a reference is one more) or trainer_ranks"
        elif shared <= world.gpus and config.inference.gpus_per_server == 1:
            refusal += "; a server and a rank share each with world.share_gpus=true weights=shared"
        raise PlanError(refusal)

    @classmethod
    def of(cls, config: RunConfig, options: Section) -> "LocalExecutor":
        return cls(visible_gpus(config))

    def capacity(self, requests: Iterable[ResourceRequest]) -> Capacity:
        by_pool: Counter[str] = Counter()
        for request in requests:
            by_pool[request.gpu_pool] += request.gpus
        needed = max(by_pool.values(), default=0)
        gpus = len(self._all_gpus)
        return Capacity(f"{NODE}: {os.cpu_count()} CPUs, {gpus} GPUs", [], [f"{needed} GPUs are needed"])

    def request(self, requests: Iterable[ResourceRequest]) -> None:
        for request in requests:
            free = self._free_gpus.setdefault(request.gpu_pool, list(self._all_gpus))
            if request.gpus > len(free):
                raise PlanError(
                    f"{request.name} needs {request.gpus} GPUs, and {len(free)} are free on {NODE}"
                )
            port = _reserved(request)
            gpus = free[: request.gpus]
            del free[: request.gpus]
            placement = Placement(NODE, LOOPBACK, port.number if port else None, ",".join(gpus))
            self._jobs[request.name] = _Job(placement, port, gpus, free)

    def poll(self) -> Mapping[str, JobState]:
        return {name: _state(job) for name, job in self._jobs.items()}

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

    def release(self, names: Iterable[str]) -> None:
        released = [self._jobs.pop(name) for name in names]
        for job in released:
            job.kill()
        for job in released:
            if job.guard:
                _wait(job.guard)
            if job.port:
                job.port.release()
            job.free_gpus += job.gpus
            job.free_gpus.sort(key=self._all_gpus.index)

    def close(self) -> None:
        self.release([*self._jobs])


def visible_gpus(config: RunConfig) -> list[str]:
    """Returns the GPUs that jobs may use. A plan may be for another machine, so the variable is ignored."""
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
    """Forks a process that forks the job and then becomes its guard. Completes the guard's order."""
    output, job_end = os.pipe()
    pid_pipe, guard_end = os.pipe()

    def fork() -> None:
        os.write(guard_end, str(fork_job(order["command"], order["environment"], job_end)).encode())

    try:
        guard = _guard(log, pass_fds=[output], preexec_fn=fork)
    except subprocess.SubprocessError as error:
        raise OSError("the job cannot be forked") from error
    finally:
        os.close(job_end)
        os.close(guard_end)
        job = os.read(pid_pipe, 32)  # empty if the guard ended before it forked the job
        os.close(pid_pipe)
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


def _state(job: _Job) -> JobState:
    if job.guard is None:
        return Placed(job.placement)
    status = job.guard.poll()
    return Running(job.placement) if status is None else Ended(job.placement, status)


def _reserved(request: ResourceRequest) -> ReservedPort | None:
    if request.port is None:
        return None
    address = request.host or LOOPBACK
    try:
        return ReservedPort(address, request.port)
    except OSError as error:
        key = request.port_key if error.errno == errno.EADDRINUSE else request.host_key
        raise PlanError(
            f"{request.name} cannot listen at {in_url(address)}:{request.port}: {error.strerror}; set "
            f"{key} to another, or leave it out"
        ) from error


def _wait(guard: subprocess.Popen[bytes]) -> None:
    """Waits for a guard to end. Kills a guard that waits for a process that cannot be killed."""
    try:
        guard.wait(GUARD_END_S)
    except subprocess.TimeoutExpired:
        guard.kill()
