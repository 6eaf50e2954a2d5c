"""The jobs of a run, and the resources that each of them needs. Must not know their commands."""

from typing import Literal, NamedTuple

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.launcher.executors.base import ResourceRequest
from pipelinerl.weight_transport import Service, transport_of

Role = Literal["server", "reference", "judging", "transport", "actor", "preprocessor", "trainer"]
WORKERS = "workers"  # the group of all jobs but the servers and the reference server
REFERENCE = "reference"
RANK_0 = "trainer-0"  # hosts the ranks' rendezvous
LAST_PORT = 65535


class JobSpec(NamedTuple):
    role: Role
    request: ResourceRequest


def job_specs(config: RunConfig, judging: JudgingConfig | None = None) -> list[JobSpec]:
    """Returns the jobs of a run: servers, reference, actor, preprocessor, ranks, judging, services.

    judging: replaces `config.judging`, which lacks the domain's verifiers until the run is resolved.
    """
    judging = judging or config.judging
    specs = [JobSpec("server", server_request(config, index)) for index in range(config.world.servers)]
    if config.reference:
        specs.append(JobSpec("reference", _listening(config, REFERENCE, config.world.servers)))
    # In one bundle with the judging service, which the actor reaches through a Unix socket.
    specs.append(JobSpec("actor", ResourceRequest("actor", WORKERS, "actor", cpus=1)))
    specs.append(JobSpec("preprocessor", ResourceRequest("preprocessor", WORKERS, "actor", cpus=1)))
    specs += [JobSpec("trainer", _rank(config, rank)) for rank in range(config.world.trainer_ranks)]
    if judging.verifiers:
        request = ResourceRequest("judging", WORKERS, "actor", cpus=judging.workers or 1)
        specs.append(JobSpec("judging", request))
    services = transport_of(config).services()
    return [*specs, *(JobSpec("transport", _beside_rank_0(config, service)) for service in services)]


def is_rank(name: str) -> bool:
    return name.startswith("trainer-")


def server_request(config: RunConfig, index: int) -> ResourceRequest:
    beyond_reference = config.reference is not None and index >= config.world.servers
    is_adopted = config.inference.url_of(index) is not None
    return _listening(config, f"server-{index}", index + beyond_reference, is_adopted)


def _listening(config: RunConfig, name: str, index: int, is_adopted: bool = False) -> ResourceRequest:
    base = config.inference.base_port
    if base is not None and base + index > LAST_PORT:
        raise PlanError(f"inference.base_port={base} leaves no port for {name}; set a lower")
    return ResourceRequest(
        name,
        group=name,
        bundle=name,
        cpus=1 if is_adopted else config.world.threads,
        gpus=config.inference.gpus_per_server if config.world.gpus and not is_adopted else 0,
        port=0 if base is None else base + index,
        host=config.inference.host,
    )


def _rank(config: RunConfig, rank: int) -> ResourceRequest:
    name = f"trainer-{rank}"
    gpus = 1 if config.world.gpus else 0
    port = 0 if name == RANK_0 else None
    pool = WORKERS if config.shares_gpus else ""
    return ResourceRequest(
        name, WORKERS, name, cpus=config.world.threads, gpus=gpus, port=port, gpu_pool=pool
    )


def _beside_rank_0(config: RunConfig, service: Service) -> ResourceRequest:
    return ResourceRequest(
        service.name,
        WORKERS,
        RANK_0,
        cpus=1,
        port=service.port,
        host=config.weights.master_address,
        port_key=service.port_key,
        host_key="weights.master_address",
    )
