"""The Ray cluster of a run: its nodes, placement groups and keepers. The only module that imports ray.

Called by `executor.py`, and by `access.py` as a program that probes a cluster. Uses only Ray core: nothing
restarts by itself, nothing is detached, and nothing is put into the object store.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import ray
import ray._private.worker
from ray import cloudpickle
from ray._private.state import state
from ray._raylet import Config, GcsClient
from ray.exceptions import AuthenticationError, RayActorError, RayError, RayTaskError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from extensions.cluster.on_ray import keeper
from extensions.cluster.on_ray.nodes import Node, View
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.bundles import Resources

CALLS = 8  # concurrent calls of one keeper: keep, run, an earlier run, end, finish
ANSWER_S = 4  # longest wait for the head's answer
SHUTDOWN_S = 5.0
REMOVE_S = 1.0
METADATA = (b"CLUSTER_METADATA", b"cluster")  # key and namespace of the versions in the head's store
Reference = ray.ObjectRef


class RayKeeper(keeper.Keeper):
    """A keeper that reports its node in the cluster."""

    def place(
        self, port: int | None, host: str | None, gpus: int, launcher: tuple[str, int]
    ) -> dict[str, Any]:
        address = ray.util.get_node_ip_address()
        node = {"node": ray.get_runtime_context().get_node_id(), "address": address}
        return node | super().place(port, host, gpus, address, launcher)


def join(address: str, namespace: str) -> None:
    """Makes this process a driver of the cluster. Its signal handlers stay unchanged."""
    handler = signal.getsignal(signal.SIGTERM)
    # Ray would print events that `poll` reports.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)
    for module in (keeper, sys.modules[__name__]):
        cloudpickle.register_pickle_by_value(module)


def leave() -> None:
    try_for(SHUTDOWN_S, ray.shutdown)


def try_for(seconds: float, act: Callable[[], object]) -> None:
    """Calls `act` in a thread, because it may block if the head is lost, and waits at most this long."""

    def attempt() -> None:
        with contextlib.suppress(RayError):
            act()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)


def own_address() -> str:
    """Returns this machine's address, by which the nodes reach it."""
    return ray.util.get_node_ip_address()


def view() -> View:
    """Returns the cluster's nodes and kinds of nodes. Blocks while the head does not answer."""
    config = state.get_cluster_config()
    kinds = config.node_group_configs if config else []
    return View(nodes(), [resources(dict(kind.resources)) for kind in kinds])


def nodes() -> list[Node]:
    """Returns the living nodes."""
    free = state.available_resources_per_node()
    deadlines = state.get_draining_nodes()  # in ms
    return [
        Node(
            id=entry["NodeID"],
            host=entry["NodeManagerHostname"],
            total=resources(entry["Resources"]),
            free=resources(free.get(entry["NodeID"], {})),
            drains_at=deadlines[entry["NodeID"]] / 1000 if entry["NodeID"] in deadlines else None,
        )
        for entry in ray.nodes()
        if entry["Alive"]
    ]


def resources(given: dict[str, float]) -> Resources:
    return Resources(given.get("CPU", 0.0), given.get("GPU", 0.0))


class Group:
    """A Ray placement group: its bundles are reserved together, on as few nodes as possible."""

    def __init__(self, name: str, bundles: dict[str, Resources]):
        self._indices = {bundle: index for index, bundle in enumerate(bundles)}
        strategy = "STRICT_PACK" if len(bundles) == 1 else "PACK"
        amounts = [
            {name: amount for name, amount in (("CPU", each.cpus), ("GPU", each.gpus)) if amount}
            for each in bundles.values()
        ]
        try:
            self._group = placement_group(amounts, strategy=strategy, name=name)
        except (RayError, OSError) as error:
            raise PlanError(f"the head of the Ray cluster does not reserve {name}: {error}") from error

    def keeper(self, bundle: str, needs: Resources, guard: str, withheld: str) -> Any:
        """Returns a keeper that starts once its bundle is placed."""
        where = PlacementGroupSchedulingStrategy(self._group, self._indices[bundle])
        options = {"max_concurrency": CALLS, "max_restarts": 0, "max_task_retries": 0}
        options |= {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "scheduling_strategy": where}
        return keeper_class().options(**options).remote(guard, withheld)

    def remove(self) -> None:
        try_for(REMOVE_S, lambda: remove_placement_group(self._group))


@cache
def keeper_class() -> Any:
    return ray.remote(RayKeeper)


def kill(keeper: Any) -> None:
    ray.kill(keeper)


def done(calls: Iterable[Reference], timeout_s: float = 0.0) -> set[Reference]:
    """Returns the calls that have ended, with or without an error."""
    calls = list(calls)
    return set(ray.wait(calls, num_returns=len(calls), timeout=timeout_s)[0]) if calls else set()


def outcome(call: Reference) -> Any:
    """Returns the result of a call that has ended. Raises KeeperLost, or the keeper's exception."""
    try:
        return ray.get(call)
    except RayActorError as error:
        raise KeeperLost(cause(str(error))) from error
    except RayTaskError as error:
        raise KeeperLost(str(error.cause)) from error
    except RayError as error:
        raise KeeperLost(str(error).strip().splitlines()[-1]) from error


class KeeperLost(Exception):
    """The keeper or its node is lost."""


def cause(message: str) -> str:
    """Returns the first sentence of the reason that Ray gives for the death of an actor."""
    reason = next((line for line in message.splitlines() if " because " in line), message.strip())
    return reason.split(" because ", 1)[-1].split(". ")[0].rstrip(".")


def describe(address: str) -> dict[str, Any]:
    """Returns the cluster's versions and addresses, and whether it `is_open` without a token."""
    client = GcsClient(address=address)
    found = json.loads(client.internal_kv_get(*METADATA))
    addresses = [node.node_manager_address for node in client.get_all_node_info(timeout=3).values()]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    found |= {"own_ray": ray.__version__, "own_python": own, "addresses": addresses, "is_open": True}
    os.environ["RAY_AUTH_MODE"] = "disabled"
    Config.initialize("")  # reads the environment again
    try:
        GcsClient(address=address).internal_kv_get(*METADATA)
    except AuthenticationError:
        found["is_open"] = False
    return found


def main() -> None:
    signal.alarm(ANSWER_S)  # ends this process even if a call blocks
    try:
        print(json.dumps(describe(sys.argv[1])))
    except AuthenticationError:
        print(json.dumps({"refused": True}))


if __name__ == "__main__":
    main()
