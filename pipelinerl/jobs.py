"""Which processes a run consists of, and where each is placed. Plans only; starts nothing."""

import os
import shutil
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.process import REDIS_VARIABLE, REFERENCE_VARIABLE, SERVERS_VARIABLE, TOKEN_VARIABLE

ROOT = Path(__file__).resolve().parent.parent


class PlanError(Exception):
    """The plan cannot be carried out; the message is one line that says what to do."""


@dataclass(frozen=True, eq=False)
class Job:
    name: str
    role: Literal["server", "reference", "actor", "preprocessor", "trainer"]
    command: tuple[str, ...]
    environment: dict[str, str]  # beside the launcher's own

    @property
    def placement(self) -> str:
        gpus = self.environment.get("CUDA_VISIBLE_DEVICES")
        return f"GPU {gpus}" if gpus else "CPU"


def plan_jobs(config: RunConfig, run_dir: Path, token: str, redis_url: str | None = None) -> list[Job]:
    """Servers first, then actor, preprocessor and the trainer's ranks."""
    ports = _server_ports(config)
    urls = [f"http://{config.inference.host}:{port}" for port in ports]
    importable = os.pathsep.join([str(ROOT), os.getcwd()])  # parts of one's own, from where one works
    common = {"PYTHONPATH": importable, TOKEN_VARIABLE: token, "PYTHONUNBUFFERED": "1"}
    threads = {"OMP_NUM_THREADS": str(config.world.threads), "TOKENIZERS_PARALLELISM": "false"}
    servers = [
        Job(
            f"server-{i}",
            "server",
            _server_command(config, config.inference.engine_of(i), port),
            common | threads | _server_gpus(config, i),
        )
        for i, port in enumerate(ports[: config.world.servers])
    ]
    streams = {REDIS_VARIABLE: redis_url} if redis_url else {}
    reference, scored_by = [], {}
    if config.reference:
        command = _server_command(config, config.reference, ports[-1])
        environment = common | threads | _reference_gpus(config)
        reference = [Job("reference", "reference", command, environment)]
        scored_by = {REFERENCE_VARIABLE: urls[-1]}
    rendezvous = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(config.world.trainer_ranks),
        SERVERS_VARIABLE: ",".join(urls[: config.world.servers]),
    }
    trainers = [
        Job(
            f"trainer-{rank}",
            "trainer",
            _module("trainer", run_dir),
            common | threads | streams | rendezvous | {"RANK": str(rank)} | _trainer_gpu(config, rank),
        )
        for rank in range(config.world.trainer_ranks)
    ]
    one_thread = {"OMP_NUM_THREADS": "1"}
    return [
        *servers,
        *reference,
        Job("actor", "actor", _module("actor", run_dir), common | one_thread | streams),
        Job(
            "preprocessor",
            "preprocessor",
            _module("preprocessor", run_dir),
            common | one_thread | streams | scored_by,
        ),
        *trainers,
    ]


def _module(name: str, run_dir: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", f"pipelinerl.{name}", "--run-dir", str(run_dir))


def _server_command(config: RunConfig, engine: EngineConfig, port: int) -> tuple[str, ...]:
    command = [_interpreter(engine), "-m", engine.module]
    command += ["--host", config.inference.host, "--port", str(port)]
    if engine.model is None:
        command += ["--model", str(config.model.path)]
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
    if engine.venv and (own := ROOT / engine.venv / "bin" / "python").exists():
        return str(own)
    if engine.package and find_spec(engine.package) is None:
        raise PlanError(
            f"{engine.package} is not installed: run `make {engine.package}-env`, or set the engine's python "
            f"(inference.python, or inference.others.{engine.package}.python) to an interpreter that has it"
        )
    return sys.executable


def _server_ports(config: RunConfig) -> list[int]:
    """Of the servers, then of the reference if there is one."""
    base, count = config.inference.base_port, config.world.servers + (config.reference is not None)
    if base is None:
        return [free_port() for _ in range(count)]
    ports = list(range(base, base + count))
    for port in ports:
        if not is_free(config.inference.host, port):
            raise PlanError(f"port {port} is in use; set inference.base_port to another, or to null")
    return ports


def _server_gpus(config: RunConfig, index: int) -> dict[str, str]:
    count = config.inference.gpus_per_server
    return _gpus(config, range(index * count, (index + 1) * count))


def _trainer_gpu(config: RunConfig, rank: int) -> dict[str, str]:
    first = config.world.servers * config.inference.gpus_per_server
    return _gpus(config, range(first + rank, first + rank + 1))


def _reference_gpus(config: RunConfig) -> dict[str, str]:
    count = config.inference.gpus_per_server
    first = config.world.servers * count + config.world.trainer_ranks
    return _gpus(config, range(first, first + count))


def _gpus(config: RunConfig, indices: range) -> dict[str, str]:
    """The environment in which a job sees these of the machine's GPUs, or none in a CPU plan."""
    if not config.world.gpus:
        return {"CUDA_VISIBLE_DEVICES": ""}
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(config.world.gpus)]
    if len(visible) < config.world.gpus:
        raise PlanError(f"world.gpus={config.world.gpus}, but CUDA_VISIBLE_DEVICES={named}")
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible[i] for i in indices)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
