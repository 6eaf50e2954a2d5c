"""Checks whether this machine can run the jobs: installed packages, GPUs, CPUs and addresses."""

import os
import socket

from contracts.support.messages import first_line
from pipelinerl.components import build_observers, instantiate
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.launcher.jobs import missing_engine

PROCESSES_PER_CPU = 128  # 64 scripted servers run on two CPUs


def check_machine(config: RunConfig) -> None:
    """Raises PlanError for missing packages, GPUs, CPUs or addresses. A plan may lack them."""
    if config.plan:
        return
    if lacking := missing(config):
        raise PlanError(lacking[0])
    import torch

    if not executor_class(config).spans_nodes:
        found = torch.cuda.device_count()
        if config.world.gpus > found:
            raise PlanError(f"world.gpus={config.world.gpus}, but torch sees {found}; 0 runs on the CPU")
        _check_processes(config)
        check_master_address(config.weights.master_address)


def _check_processes(config: RunConfig) -> None:
    cpus = os.cpu_count() or 1
    processes = config.world.servers + config.world.trainer_ranks
    if processes > PROCESSES_PER_CPU * cpus:
        raise PlanError(
            f"world.servers + world.trainer_ranks = {processes} processes on {cpus} CPUs; the most here is "
            f"{PROCESSES_PER_CPU * cpus}; executor=ray runs them on several machines (docs/cluster.md)"
        )


def check_master_address(address: str | None) -> None:
    """Raises PlanError for an address at which trainer rank 0, on this machine, cannot listen."""
    if address is None:
        return
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET  # as the rendezvous store listens
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError) as error:
        raise PlanError(
            f"weights.master_address={address} is no address of this machine ({first_line(error)}); leave it "
            "null, or set it to one"
        ) from error


def missing(config: RunConfig) -> list[str]:
    """Returns how to install the missing packages of trainer, engines, executor and observers."""
    engines = [config.inference, *config.inference.others.values(), *filter(None, [config.reference])]
    lacking = [instantiate(config.trainer).missing, *map(missing_engine, engines)]
    lacking.append(executor_class(config).missing())
    lacking += [observer.missing() for observer in build_observers(config)]
    return list(dict.fromkeys(filter(None, lacking)))
