"""What each job of a run needs of the node that it is placed on. It starts nothing and knows no command."""

from typing import Literal, NamedTuple

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Want

Role = Literal["server", "reference", "judging", "origin", "actor", "preprocessor", "trainer"]
WORKERS = "workers"  # the group of all that is placed together
REFERENCE = "reference"
ORIGIN = "origin"
RANK_0 = "trainer-0"  # hosts the ranks' rendezvous
LAST_PORT = 65535


class Member(NamedTuple):
    """A job of the run, by what it is."""

    role: Role
    want: Want


def members_of(config: RunConfig) -> list[Member]:
    """Returns the jobs of a run: servers, reference, actor, preprocessor, ranks, judging, origin."""
    servers = [Member("server", server_want(config, i)) for i in range(config.world.servers)]
    reference = [Member("reference", _reference(config))] if config.reference else []
    # One bundle, on one node: the actor reaches the judging service through a socket of the file system.
    names: list[Role] = ["actor", "preprocessor"]
    workers = [Member(name, Want(name, WORKERS, "actor", cpus=1)) for name in names]
    trainers = [Member("trainer", _rank(config, rank)) for rank in range(config.world.trainer_ranks)]
    judging = [Member("judging", _judging(config))] if config.judging.verifiers else []
    origin = [Member("origin", _origin(config))] if config.weights.transport == "relay" else []
    return [*servers, *reference, *workers, *trainers, *judging, *origin]


def is_rank(name: str) -> bool:
    """Returns whether the job of this name is one of the trainer's ranks."""
    return name.startswith("trainer-")


def server_want(config: RunConfig, index: int) -> Want:
    """Returns what the server of this number needs."""
    beyond_reference = config.reference is not None and index >= config.world.servers
    return _listening(config, f"server-{index}", index + beyond_reference)


def _reference(config: RunConfig) -> Want:
    return _listening(config, REFERENCE, config.world.servers)


def _listening(config: RunConfig, name: str, index: int) -> Want:
    base = config.inference.base_port
    if base is not None and base + index > LAST_PORT:
        raise PlanError(f"inference.base_port={base} leaves no port for {name}; set a lower")
    return Want(
        name,
        group=name,
        bundle=name,
        cpus=config.world.threads,
        gpus=config.inference.gpus_per_server if config.world.gpus else 0,
        port=0 if base is None else base + index,
        host=config.inference.host,
    )


def _rank(config: RunConfig, rank: int) -> Want:
    name = f"trainer-{rank}"
    gpus = 1 if config.world.gpus else 0
    return Want(name, WORKERS, name, cpus=config.world.threads, gpus=gpus, port=0 if name == RANK_0 else None)


def _origin(config: RunConfig) -> Want:
    """Returns what the origin needs: the node of trainer rank 0, which writes the store."""
    return Want(
        ORIGIN,
        WORKERS,
        RANK_0,
        cpus=1,
        port=config.weights.origin_port,
        host=config.weights.master_address,
        port_key="weights.origin_port",
        host_key="weights.master_address",
    )


def _judging(config: RunConfig) -> Want:
    return Want("judging", WORKERS, "actor", cpus=config.judging.workers or 1)
