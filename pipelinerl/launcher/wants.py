"""What each job of a run needs of the node that it is placed on. It starts nothing and knows no command."""

from typing import Literal, NamedTuple

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.launcher.executors.base import Want
from pipelinerl.weight_transport import Service, transport_of

Role = Literal["server", "reference", "judging", "transport", "actor", "preprocessor", "trainer"]
WORKERS = "workers"  # the group of all that is placed together
REFERENCE = "reference"
RANK_0 = "trainer-0"  # hosts the ranks' rendezvous
LAST_PORT = 65535


class Member(NamedTuple):
    """A job of the run, by what it is."""

    role: Role
    want: Want


def members_of(config: RunConfig, judging: JudgingConfig | None = None) -> list[Member]:
    """Returns the jobs of a run: servers, reference, actor, preprocessor, ranks, judging, services.

    judging: with the verifiers of the domain, if `config` is not resolved yet.
    """
    judging = judging or config.judging
    servers = [Member("server", server_want(config, i)) for i in range(config.world.servers)]
    reference = [Member("reference", _reference(config))] if config.reference else []
    # One bundle, on one node: the actor reaches the judging service through a socket of the file system.
    names: list[Role] = ["actor", "preprocessor"]
    workers = [Member(name, Want(name, WORKERS, "actor", cpus=1)) for name in names]
    trainers = [Member("trainer", _rank(config, rank)) for rank in range(config.world.trainer_ranks)]
    judges = [Member("judging", _judging(judging))] if judging.verifiers else []
    services = [Member("transport", _beside_rank_0(config, s)) for s in transport_of(config).services()]
    return [*servers, *reference, *workers, *trainers, *judges, *services]


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


def _beside_rank_0(config: RunConfig, service: Service) -> Want:
    return Want(
        service.name,
        WORKERS,
        RANK_0,
        cpus=1,
        port=service.port,
        host=config.weights.master_address,
        port_key=service.port_key,
        host_key="weights.master_address",
    )


def _judging(options: JudgingConfig) -> Want:
    return Want("judging", WORKERS, "actor", cpus=options.workers or 1)
