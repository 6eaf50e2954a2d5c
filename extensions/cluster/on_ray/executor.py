"""The executor of a Ray cluster: an actor on the job's node, its keeper, starts each job behind a guard.

A job that can be restarted alone has its own group, which can be placed again; the workers share one group.
Ray places groups and reports losses. It restarts nothing, and its store holds no record, weight or secret.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from extensions.cluster.on_ray.access import Access, access, address_of, missing_ray, prepare_environment
from extensions.cluster.on_ray.job import RayJob
from extensions.cluster.on_ray.lifeline import Lifeline
from extensions.cluster.on_ray.nodes import capacity, fits, free_in_words, too_large
from extensions.cluster.on_ray.options import RayOptions, check_run
from pipelinerl.config import RunConfig
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

GUARD = Path(executors.__file__).with_name("guard.py")
FINISH_S = 3.0  # longest wait for guards to kill what is left; after that they continue by themselves
NOTICES_WITHIN_S = 10.0  # after a node's death, with the health checks of docs/cluster.md


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
        check_run(config)

    @classmethod
    def of(cls, config: RunConfig, options: RayOptions) -> "RayExecutor":
        return cls(options)

    @cached_property
    def _access(self) -> Access:
        return access(os.environ, self._options.allow_unauthenticated)

    @cached_property
    def _cluster(self) -> Any:
        """The module that imports ray. The first use joins the cluster."""
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
    def _watch(self) -> Any:
        from extensions.cluster.on_ray.watch import Watch

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
        if not self._watch.is_fresh():  # asking would block while the head does not answer
            raise PlanError(f"the head of the Ray cluster at {self._access.address} does not answer")
        self._refuse_impossible(requests)
        for name, members in groups_of(requests).items():
            if name not in self._groups:
                self._groups[name] = self._cluster.Group(name, bundles_of(members))
        guard = GUARD.read_text()
        for request in requests:
            group = self._groups[request.group]
            keeper = group.keeper(request.bundle, needs_of(request), guard, WITHHELD.pattern)
            self._jobs[request.name] = RayJob(self._cluster, request, keeper, self._lifeline.address)

    def _refuse_impossible(self, requests: list[ResourceRequest]) -> None:
        """Raises PlanError if no node is large enough, including the kinds that an autoscaler may start."""
        if impossible := too_large(requests, self._kinds()):
            raise PlanError(impossible[0])

    def _kinds(self) -> list[Resources]:
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
            job.hear(done)
        return {name: job.state(nodes, self._needs(job.request), free) for name, job in self._jobs.items()}

    def _needs(self, request: ResourceRequest) -> str:
        """Returns the resources, as text, that must be free to place the job's group."""
        together = [job.request for job in self._jobs.values() if job.request.group == request.group]
        return in_words(bundles_of(together).values())

    def start(self, name: str, process: Process) -> None:
        forwarded = {name: os.environ[name] for name in self._options.forward_env if name in os.environ}
        self._jobs[name].start(process, forwarded)

    def end(self, names: Iterable[str]) -> None:
        for name in names:
            self._jobs[name].end()

    def release(self, names: Iterable[str]) -> None:
        dropped = [self._jobs.pop(name) for name in names]
        if not dropped:
            return
        self._cluster.done([job.finish() for job in dropped if job.is_reached], FINISH_S)
        for job in dropped:
            job.kill()
        kept = {job.request.group for job in self._jobs.values()}
        for name in {job.request.group for job in dropped} - kept:
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
