"""One job on a Ray cluster: its keeper, the keeper's pending calls, and their results."""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from extensions.cluster.on_ray.nodes import Node, node_name
from pipelinerl.launcher.executors.base import (
    Draining,
    Ended,
    JobState,
    Lost,
    Placed,
    Placement,
    Process,
    ResourceRequest,
    Running,
    Waiting,
)


class RayJob:
    """cluster: the module `cluster`. keeper: an actor's handle. launcher: the address of the lifeline."""

    def __init__(self, cluster: Any, request: ResourceRequest, keeper: Any, launcher: tuple[str, int]):
        self.request = request
        self.placement: Placement | None = None
        self._cluster = cluster
        self._keeper = keeper
        self._node_id = ""
        self._placing = keeper.place.remote(request.port, request.host, request.gpus, launcher)
        self._keeping = keeper.keep.remote()
        self._running: Any = None
        self._number = 0  # number of the process that was started last
        self._status: int | None = None
        self._lost: str | None = None

    @property
    def is_reached(self) -> bool:
        """Whether the keeper runs, so that it may have started a process."""
        return self.placement is not None and self._lost is None

    def calls(self) -> list[Any]:
        """Returns the pending calls. Calls that end must be passed to `take_results`."""
        if self._lost is not None:
            return []
        return [call for call in (self._placing, self._running, self._keeping) if call is not None]

    def take_results(self, done: set[Any]) -> None:
        """done: calls that have ended, of any job."""
        try:
            if self._placing in done:
                self._place(self._cluster.outcome(self._placing))
            if self._running in done:
                self._status = self._cluster.outcome(self._running)
                self._running = None
            if self._keeping in done:
                self._cluster.outcome(self._keeping)
        except self._cluster.KeeperLost as lost:
            self._lost = f"{self.placement.node}: {lost}" if self.placement else str(lost)

    def _place(self, found: dict[str, Any]) -> None:
        self._placing = None
        self._node_id = found["node"]
        name = node_name(found["host"], found["node"])
        self.placement = Placement(name, found["address"], found["port"], found["gpus"], found["interface"])

    def state(self, nodes: Mapping[str, Node], needs: str, free: str) -> JobState:
        """Returns the job's state. needs: the missing resources. free: the free ones, as text."""
        if self._number and self._running is None:  # a process that has ended cannot be lost later
            return Ended(self.placement, self._status)
        if self._lost is not None:
            return Lost(self.placement, self._lost)
        if self.placement is None:
            return Waiting(f"{needs}; {free}")
        if self._number == 0:
            return Placed(self.placement)
        node = nodes.get(self._node_id)
        if node and node.drains_at is not None:
            return Draining(self.placement, node.drains_at or math.inf)
        return Running(self.placement)

    def start(self, process: Process, forwarded: dict[str, str]) -> None:
        self._number += 1
        order = asdict(process) | {"log": str(process.log), "forwarded": forwarded, "directory": os.getcwd()}
        self._running = self._keeper.run.remote(self._number, order)

    def end(self) -> None:
        if self._running is not None:
            self._keeper.end.remote(self._number)

    def finish(self) -> Any:
        """Returns a call that ends when no process of the job is left."""
        return self._keeper.finish.remote()

    def kill(self) -> None:
        self._cluster.kill(self._keeper)
