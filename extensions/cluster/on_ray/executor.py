"""The executor of a Ray cluster. Each job has a keeper: a Ray actor on its node, which starts its guard.

A group of jobs is a Ray placement group. Ray places groups and reports losses. It restarts nothing, and its
object store has no record, weight or secret.
"""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from extensions.cluster.on_ray.access import Access, access, address_of, missing_ray, prepare_environment
from extensions.cluster.on_ray.job import RayJob
from extensions.cluster.on_ray.nodes import Watch, capacity, fits, free_in_words, too_large
from pipelinerl.config import Bool, RunConfig, Section
from pipelinerl.errors import PlanError
from pipelinerl.launcher import executors
from pipelinerl.launcher.executors.base import (
    WITHHELD,
    Capacity,
    Executor,
    JobState,
    Lost,
    Process,
    ResourceRequest,
)
from pipelinerl.launcher.executors.bundles import Resources, bundles_of, groups_of, in_words, needs_of
from pipelinerl.launcher.terminal import print_message
from pipelinerl.streams.of_run import backend_of

GUARD = Path(executors.__file__).with_name("guard.py")
FINISH_S = 3.0  # longest wait for guards to kill the remaining processes; afterwards they continue alone
RETRY_S = 1.0  # after a connection that could not be accepted
NOTICES_WITHIN_S = 10.0  # after a node's death, with the health checks of docs/cluster.md


class RayOptions(Section):
    place_timeout_s: float = Field(
        120, gt=0, description="Longest wait for workers and servers to be placed."
    )
    forward_env: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = Field(
        [], description="Variables of the launcher's environment that jobs get."
    )
    allow_unauthenticated: Bool = Field(
        False, description="Run on a cluster that whoever reaches it may use."
    )


class Lifeline:
    """Accepts connections at a free port of `address`, by which keepers notice the launcher's end.

    The operating system closes them when the launcher ends. Ray would not notify keepers that have lost the
    head. Nothing is sent on them.
    """

    def __init__(self, address: str):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family, backlog=1024)
        self._connections: list[socket.socket] = []
        self._closed = threading.Event()
        self.address: tuple[str, int] = self._listening.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends the thread's wait in accept
        self._listening.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                if self._closed.wait(RETRY_S):
                    return
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._connections = [each for each in self._connections if not _has_ended(each)] + [connection]


def _has_ended(connection: socket.socket) -> bool:
    """Returns True, and closes the connection, if the keeper has ended."""
    try:
        connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True


class RayExecutor(Executor):
    """The executor of the cluster at RAY_ADDRESS, which it joins at the first use."""

    Options = RayOptions
    spans_nodes = True
    may_fork = False  # the client of the cluster has threads
    notices_within_s = NOTICES_WITHIN_S

    def __init__(self, options: RayOptions):
        self._options = options
        self.place_timeout_s = options.place_timeout_s
        self._jobs: dict[str, RayJob] = {}
        self._groups: dict[str, Any] = {}
        self._joined = False
        for name in options.forward_env:
            if name not in os.environ:
                print_message(f"executor.forward_env: {name} is not set here, so no job is given it")

    @classmethod
    def missing(cls) -> str | None:
        return missing_ray()

    @classmethod
    def check(cls, config: RunConfig) -> None:
        if not backend_of(config.streams, Path()).spans_nodes:
            raise PlanError("executor=ray needs streams=redis")
        if config.shares_gpus:
            raise PlanError("world.share_gpus=true needs executor=local: Ray gives each job its own GPUs")
        if config.inference.host:
            raise PlanError(
                f"inference.host={config.inference.host}: with executor=ray, servers bind to their node's "
                "address; leave it null"
            )

    @classmethod
    def of(cls, config: RunConfig, options: RayOptions) -> "RayExecutor":
        return cls(options)

    @cached_property
    def _access(self) -> Access:
        return access(os.environ, self._options.allow_unauthenticated)

    @cached_property
    def _cluster(self) -> Any:
        """The module `cluster`. The first use imports ray and joins the cluster."""
        prepare_environment(self._access)
        from extensions.cluster.on_ray import cluster

        try:
            cluster.join(self._access.address, f"pipelinerl-{secrets.token_hex(4)}")
        except (OSError, RuntimeError) as error:
            message = str(error).strip().splitlines()[0]
            raise PlanError(f"cannot join the Ray cluster at {self._access.address}: {message}") from error
        self._joined = True
        return cluster

    @cached_property
    def _watch(self) -> Watch:
        return Watch(self._cluster.view)

    @cached_property
    def _lifeline(self) -> Lifeline:
        return Lifeline(self.address)

    @property
    def address(self) -> str:
        return self._cluster.own_address()

    def capacity(self, requests: Iterable[ResourceRequest]) -> Capacity:
        if address_of(os.environ) is None:
            return Capacity("ray, no cluster asked (RAY_ADDRESS is not set)", [], [])
        nodes = self._watch.view.nodes
        secured = "token authentication" if self._access.authenticated else "no authentication"
        where = f"ray {self._access.version} at {self._access.address}, {secured}"
        requests = list(requests)
        fitting = [fits(requests, nodes), *(f"never: {why}" for why in too_large(requests, self._kinds()))]
        return Capacity(f"{where}: {capacity(nodes)}", [str(node) for node in nodes], fitting)

    def request(self, requests: Iterable[ResourceRequest]) -> None:
        requests = list(requests)
        if not self._watch.is_fresh():  # a request would block while the head does not answer
            raise PlanError(f"the head of the Ray cluster at {self._access.address} does not answer")
        if impossible := too_large(requests, self._kinds()):
            raise PlanError(impossible[0])
        for name, members in groups_of(requests).items():
            if name not in self._groups:
                self._groups[name] = self._cluster.Group(name, bundles_of(members))
        guard = GUARD.read_text()
        for request in requests:
            group = self._groups[request.group]
            keeper = group.keeper(request.bundle, needs_of(request), guard, WITHHELD.pattern)
            self._jobs[request.name] = RayJob(self._cluster, request, keeper, self._lifeline.address)

    def _kinds(self) -> list[Resources]:
        """Returns the resources of each node, and of nodes that an autoscaler may start."""
        nodes, could_be_added = self._watch.view
        return [node.total for node in nodes] + could_be_added

    def poll(self) -> Mapping[str, JobState]:
        if not self._jobs:
            return {}
        done = self._cluster.done([call for job in self._jobs.values() for call in job.calls()])
        if self._watch.is_silent():
            why = f"the head of the Ray cluster at {self._access.address} does not answer"
            return {name: Lost(job.placement, why) for name, job in self._jobs.items()}
        nodes = {node.id: node for node in self._watch.view.nodes}
        free = free_in_words(nodes.values())
        for job in self._jobs.values():
            job.take_results(done)
        return {name: job.state(nodes, self._needs(job.request), free) for name, job in self._jobs.items()}

    def _needs(self, request: ResourceRequest) -> str:
        """Returns the resources of the job's group, as text."""
        together = [job.request for job in self._jobs.values() if job.request.group == request.group]
        return in_words(bundles_of(together).values())

    def start(self, name: str, process: Process) -> None:
        forwarded = {name: os.environ[name] for name in self._options.forward_env if name in os.environ}
        self._jobs[name].start(process, forwarded)

    def end(self, names: Iterable[str]) -> None:
        for name in names:
            self._jobs[name].end()

    def release(self, names: Iterable[str]) -> None:
        released = [self._jobs.pop(name) for name in names]
        if not released:
            return
        self._cluster.done([job.finish() for job in released if job.is_reached], FINISH_S)
        for job in released:
            job.kill()
        kept = {job.request.group for job in self._jobs.values()}
        for name in {job.request.group for job in released} - kept:
            group = self._groups.pop(name)
            if not self._watch.is_silent():
                group.remove()

    def close(self) -> None:
        self.release([*self._jobs])
        if self._joined:
            self._joined = False
            if "_watch" in self.__dict__:
                self._watch.stop()
            self._cluster.leave()
            if "_lifeline" in self.__dict__:
                self._lifeline.close()
