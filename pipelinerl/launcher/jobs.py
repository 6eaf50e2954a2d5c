"""Which processes a run consists of, and where each is placed. Plans only; starts nothing."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.judging.child import service_command, service_environment
from pipelinerl.judging.client import SOCKET_VARIABLE
from pipelinerl.launcher.hosts import INTERFACE_VARIABLE, RANK_0, REFERENCE, Host, server_address, server_urls
from pipelinerl.paths import ROOT
from pipelinerl.placement import Place
from pipelinerl.process import REDIS_VARIABLE, REFERENCE_VARIABLE
from pipelinerl.training.update_times import hold_timeout_s


@dataclass(frozen=True, eq=False)
class Job:
    name: str
    role: Literal["server", "reference", "judging", "actor", "preprocessor", "trainer"]
    command: tuple[str, ...]
    environment: dict[str, str]  # beside the launcher's own, unless it is complete
    node: int = 0
    nodes: int = 1  # of the run
    has_whole_environment: bool = False  # whether `environment` is all that it is given

    @property
    def placement(self) -> str:
        gpus = self.environment.get("CUDA_VISIBLE_DEVICES")
        node = f"node {self.node} " if self.nodes > 1 else ""
        return node + (f"GPU {gpus}" if gpus else "CPU")


def plan_jobs(
    config: RunConfig,
    run_dir: Path,
    hosts: list[Host],
    token: str,
    redis_url: str | None = None,
) -> list[Job]:
    """Returns the jobs of all nodes: servers, actor, preprocessor, then the trainer's ranks.

    `hosts` holds one entry for each node.
    """
    urls = server_urls(config, hosts)
    importable = os.pathsep.join([str(ROOT), os.getcwd()])  # parts of one's own, from where one works
    common = {"PYTHONPATH": importable, TOKEN_VARIABLE: token, "PYTHONUNBUFFERED": "1"}
    streams = {REDIS_VARIABLE: redis_url} if redis_url else {}
    socket = {SOCKET_VARIABLE: str(judging_socket(run_dir, token))} if config.judging.verifiers else {}
    jobs = [
        *_servers(config, hosts),
        *_workers(run_dir, streams | socket, urls.pop(REFERENCE, None)),
        *_trainers(config, run_dir, hosts, streams),
    ]
    jobs = [replace(job, environment=common | _network(hosts[job.node]) | job.environment) for job in jobs]
    return [replace(job, nodes=len(hosts)) for job in [*jobs, *_judging(run_dir, socket)]]


def judging_socket(run_dir: Path, token: str) -> Path:
    """Returns where the judging service listens: a short path, in a directory that nobody can guess."""
    name = blake2b(str(run_dir).encode(), key=token.encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"pipelinerl-{name}" / "judging"


def _judging(run_dir: Path, socket: dict[str, str]) -> Iterator[Job]:
    """On node 0, next to the actor, where anything is judged; it is given no secret."""
    if socket:
        environment = service_environment(Path(socket[SOCKET_VARIABLE]))
        yield Job("judging", "judging", service_command(run_dir), environment, has_whole_environment=True)


def _network(host: Host) -> dict[str, str]:
    return {INTERFACE_VARIABLE: host.interface} if host.interface else {}


def _servers(config: RunConfig, hosts: list[Host]) -> Iterator[Job]:
    servers, _, reference = config.placement
    named = [
        (f"server-{i}", "server", config.inference.engine_of(i), place) for i, place in enumerate(servers)
    ]
    if reference:
        named.append((REFERENCE, "reference", config.reference, reference))
    for name, role, engine, place in named:
        host = hosts[place.node]
        address = server_address(config, host.address)
        command = _server_command(config, engine, address, host.ports[name], updated=role == "server")
        yield Job(name, role, command, _threads(config) | _gpus(config, place), place.node)


def _workers(run_dir: Path, streams: dict[str, str], reference: str | None) -> Iterator[Job]:
    """On node 0."""
    environment = {"OMP_NUM_THREADS": "1"} | streams
    scored_by = {REFERENCE_VARIABLE: reference} if reference else {}
    yield Job("actor", "actor", _module("actor", run_dir), environment)
    yield Job("preprocessor", "preprocessor", _module("preprocessor", run_dir), environment | scored_by)


def _trainers(
    config: RunConfig, run_dir: Path, hosts: list[Host], environment: dict[str, str]
) -> Iterator[Job]:
    places = config.placement.trainers
    rank_0 = hosts[places[0].node]
    rendezvous = {
        "MASTER_ADDR": rank_0.address,
        "MASTER_PORT": str(rank_0.ports[RANK_0]),
        "WORLD_SIZE": str(config.world.trainer_ranks),
    }
    for rank, place in enumerate(places):
        own = {"RANK": str(rank)} | _threads(config) | _gpus(config, place)
        command = _module("trainer", run_dir)
        yield Job(f"trainer-{rank}", "trainer", command, environment | rendezvous | own, place.node)


def _module(name: str, run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", f"pipelinerl.{name}", "--run-dir", str(run_dir))


def _server_command(
    config: RunConfig, engine: EngineConfig, address: str, port: int, updated: bool
) -> tuple[str, ...]:
    """`updated`: whether the trainer publishes weights to it."""
    command = [_interpreter(engine), "-m", engine.module, "--host", address, "--port", str(port)]
    if engine.model is None:
        command += ["--model", str(config.model.path)]
    if updated:
        command += ["--hold-timeout-s", str(hold_timeout_s(config.weights))]
    for name, value in engine.arguments.items():
        command += _option(name.replace("_", "-"), value)
    return tuple(command)


def _option(name: str, value: object) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [] if value is None else [f"--{name}", str(value)]


def _interpreter(engine: EngineConfig) -> str:
    if engine.python:
        if shutil.which(engine.python) is None:
            raise PlanError(f"inference.python: {engine.python} is no interpreter that can be run here")
        return engine.python
    own = _own_python(engine)
    return str(own) if own else sys.executable


def _own_python(engine: EngineConfig) -> Path | None:
    """Returns the interpreter of the engine's own environment, or None if it has not been made."""
    python = ROOT / engine.venv / "bin" / "python" if engine.venv else None
    return python if python and python.exists() else None


def missing_engine(engine: EngineConfig) -> str | None:
    """Returns what to do if the engine's package is not installed, or None if it is."""
    if engine.python or not engine.package or _own_python(engine) or find_spec(engine.package):
        return None
    return (
        f"{engine.package} is not installed: run `make {engine.package}-env`, or set the engine's python "
        f"(inference.python, or inference.others.{engine.package}.python) to an interpreter that has it"
    )


def _threads(config: RunConfig) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(config.world.threads), "TOKENIZERS_PARALLELISM": "false"}


def _gpus(config: RunConfig, place: Place) -> dict[str, str]:
    """The environment in which a job sees its GPUs of the machine, or none in a CPU plan."""
    if not config.world.gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    named = None if config.plan else os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(config.world.gpus)]
    if len(visible) < config.world.gpus:
        raise PlanError(f"world.gpus={config.world.gpus}, but CUDA_VISIBLE_DEVICES={named}")
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[i] for i in place.gpus)}
