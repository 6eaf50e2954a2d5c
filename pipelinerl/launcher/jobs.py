"""Plans the command and the environment of each process of a run. Starts nothing."""

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from contracts.decided import refused_model, refused_option, refused_run, takes_model
from contracts.limits import START_VARIABLE
from contracts.support.addresses import in_url
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.config import EngineConfig, ResolvedRun, RunConfig
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import describe_fault
from pipelinerl.judging.child import service_command, service_environment
from pipelinerl.judging.client import SOCKET_VARIABLE
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.launcher.executors.base import Executor, Placement, executor_class
from pipelinerl.launcher.resource_requests import RANK_0, REFERENCE, Role, job_specs
from pipelinerl.paths import ROOT, importable
from pipelinerl.process import REFERENCE_VARIABLE
from pipelinerl.training.update_times import hold_timeout_s
from pipelinerl.turns import turns_of
from pipelinerl.weight_transport import LaunchContext, transport_of

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"  # torch's


@dataclass(frozen=True)
class Job:
    """One process of a run, and its placement."""

    name: str
    role: Role
    placement: Placement
    command: tuple[str, ...]
    environment: dict[str, str]
    has_whole_environment: bool = False  # True for jobs that get none of the run's secrets
    url: str | None = None  # set for servers

    @property
    def device(self) -> str:
        return f"GPU {self.placement.gpus}" if self.placement.gpus else "CPU"


class JobPlanner:
    """token: authenticates clients to the servers. streams: environment variables that locate the streams."""

    def __init__(self, config: RunConfig, run_dir: Path, token: str, streams: Mapping[str, str]):
        self._config = config
        self._run_dir = run_dir
        self._token = token
        self._common = {"PYTHONPATH": importable(), TOKEN_VARIABLE: token, "PYTHONUNBUFFERED": "1"}
        self._streams = streams
        directory = "/tmp" if executor_class(config).spans_nodes else tempfile.gettempdir()  # on any node
        self.judging_socket = judging_socket(directory, run_dir, token) if config.judging.verifiers else None
        self.transport = transport_of(config)
        self._services = {service.name: service for service in self.transport.services()}
        self._socket = {SOCKET_VARIABLE: str(self.judging_socket)} if self.judging_socket else {}

    def plan(self, placements: Mapping[str, Placement]) -> list[Job]:
        roles = {request.name: role for role, request in job_specs(self._config)}
        return [self.job(name, role, placements) for name, role in roles.items() if name in placements]

    def job(self, name: str, role: Role, placements: Mapping[str, Placement]) -> Job:
        """Returns a job. `placements`: its own, and those of the jobs whose addresses it needs."""
        placement = placements[name]
        match role:
            case "judging":
                command = service_command(self._run_dir)
                environment = service_environment(self.judging_socket)
                return Job(name, role, placement, command, environment, has_whole_environment=True)
            case "transport":
                host = self._config.weights.master_address or placement.address
                command = self._services[name].command(self.launch(placements), host, placement.port)
                environment = clean_environment({"PYTHONPATH": importable(), "PYTHONUNBUFFERED": "1"})
                return Job(name, role, placement, command, environment, has_whole_environment=True)
            case "server" | "reference":
                command = self._server_command(name, role, placements)
                start_s = math.ceil(self._config.world.server_start_timeout_s)
                own = _threads(self._config) | {START_VARIABLE: str(start_s)}
            case "actor" | "preprocessor":
                command = self._module(role)
                own = {"OMP_NUM_THREADS": "1"} | self._streams | self._socket | self._scored_by(placements)
            case "trainer":
                command = self._module(role)
                own = _threads(self._config) | self._streams | self._rendezvous(name, placements)
                own |= self._scored_by(placements)
                own |= self._environment_of_transport(placements)
        network = {INTERFACE_VARIABLE: placement.interface} if placement.interface else {}
        gpus = {"CUDA_VISIBLE_DEVICES": placement.gpus}
        url = self._url_of(name, placement) if role in ("server", "reference") else None
        return Job(name, role, placement, command, self._common | network | gpus | own, url=url)

    def _environment_of_transport(self, placements: Mapping[str, Placement]) -> dict[str, str]:
        given = self.transport.trainer_environment(self.launch(placements))
        if isinstance(given, dict) and all(isinstance(text, str) for pair in given.items() for text in pair):
            return given
        named = type(self.transport)
        raise PartError(describe_fault(named, "a dict of str", given, "trainer_environment", "weights"))

    def _hold_timeout_s(self) -> float:
        turns = turns_of(self._config)
        return max(hold_timeout_s(self._config.weights), turns.hold_timeout_s if turns else 0)

    def _module(self, name: str) -> tuple[str, ...]:
        return (sys.executable, "-m", f"pipelinerl.{name}", "--run-dir", str(self._run_dir))

    def _scored_by(self, placements: Mapping[str, Placement]) -> dict[str, str]:
        return {REFERENCE_VARIABLE: self._url(placements[REFERENCE])} if REFERENCE in placements else {}

    def _rendezvous(self, name: str, placements: Mapping[str, Placement]) -> dict[str, str]:
        return {
            "MASTER_ADDR": placements[RANK_0].address,
            "MASTER_PORT": str(placements[RANK_0].port),
            "WORLD_SIZE": str(self._config.world.trainer_ranks),
            "RANK": name.removeprefix("trainer-"),
        }

    def launch(self, placements: Mapping[str, Placement]) -> LaunchContext:
        """Returns the context for the transport. `placements`: at least those of its services."""
        given = self._config.weights.master_address
        placed = {name: placements[name] for name in self._services if name in placements}
        urls = {name: f"http://{in_url(given or at.address)}:{at.port}" for name, at in placed.items()}
        return LaunchContext(self._run_dir, self._token, urls)

    def _url(self, placement: Placement) -> str:
        return f"http://{in_url(self._host(placement))}:{placement.port}"

    def _url_of(self, name: str, placement: Placement) -> str:
        return adopted_url(self._config, name) or self._url(placement)

    def _host(self, placement: Placement) -> str:
        return self._config.inference.host or placement.address

    def _server_command(self, name: str, role: Role, placements: Mapping[str, Placement]) -> tuple[str, ...]:
        if url := adopted_url(self._config, name):
            self._refuse_options(name, placements, "inference.urls: a server that runs already")
            return (sys.executable, "-m", "pipelinerl.launcher.adopted_server", "--url", url)
        engine = engine_of(self._config, name)
        if engine.command:
            self._refuse_options(name, placements, "inference.command: a server that is no module")
            return self._own_command(engine, placements[name])
        return self._module_command(name, role, engine, placements)

    def _refuse_options(self, name: str, placements: Mapping[str, Placement], which: str) -> None:
        """Raises PlanError if the weight transport gives servers options."""
        if self.transport.server_options(self.launch(placements), name):
            raise PlanError(f"{which} gets its weights by weights=group; others need options at its start")

    def _own_command(self, engine: EngineConfig, placement: Placement) -> tuple[str, ...]:
        if not any("{port}" in part for part in engine.command):
            raise PlanError("inference.command: no word has {port}, at which the server must listen")
        if not executor_class(self._config).spans_nodes and shutil.which(engine.command[0]) is None:
            raise PlanError(f"inference.command: {engine.command[0]} is no program here")
        for word in engine.command:
            if os.path.isfile(word) and not os.path.isabs(word):  # of a long word Path would raise
                path = Path(word).absolute()
                raise PlanError(f"inference.command: servers start in the run's directory; write {path}")
        places = {"host": self._host(placement), "port": placement.port, "model": self._config.model.path}
        try:
            return tuple(part.format(**places) for part in engine.command)
        except (KeyError, IndexError, ValueError) as error:
            raise PlanError(
                f"inference.command: {error!r}; in braces are {{host}}, {{port}} and {{model}} alone"
            ) from None

    def _module_command(
        self, name: str, role: Role, engine: EngineConfig, placements: Mapping[str, Placement]
    ) -> tuple[str, ...]:
        placement = placements[name]
        if engine.module is None:
            raise PlanError(f"{name}: no engine is chosen; choose one, such as inference=transformers")
        key = REFERENCE if name == REFERENCE else "inference"
        if why := refused_option(engine.module, engine.arguments):
            raise PlanError(f"{name}: {key}.arguments.{why}")
        if why := refused_run(engine.module, self._config.model_dump(by_alias=True, mode="json")):
            raise PlanError(f"{name}: {why}")
        if engine.model and takes_model(engine.module):
            raise PlanError(f"{key}.model would leave out --model: set +{key}.arguments.model={engine.model}")
        served = engine.arguments.get("model", self._config.model.path)
        if why := refused_model(engine.module, str(served)):
            raise PlanError(f"{name}: {why}")
        command = [interpreter_of(engine), "-m", engine.module, "--host", self._host(placement)]
        command += ["--port", str(placement.port)]
        if engine.model is None and "model" not in engine.arguments:
            command += ["--model", str(self._config.model.path)]
        if role == "server" or self._config.reference.renew_every:  # it receives weights
            command += ["--hold-timeout-s", str(self._hold_timeout_s())]
        if role == "server":
            command += self.transport.server_options(self.launch(placements), name)
        for option, value in engine.arguments.items():
            command += _option(option.replace("_", "-"), value)
        return tuple(command)


class PlacedRun(NamedTuple):
    """A run whose jobs are placed."""

    config: ResolvedRun
    run_dir: Path
    planner: JobPlanner
    executor: Executor
    placements: dict[str, Placement]


def adopted_url(config: RunConfig, name: str) -> str | None:
    """Returns the URL of a server that runs already; None for other servers, and the reference server."""
    return None if name == REFERENCE else config.inference.url_of(int(name.removeprefix("server-")))


def engine_of(config: RunConfig, name: str) -> EngineConfig:
    if name == REFERENCE:
        return config.reference
    return config.inference.engine_of(int(name.removeprefix("server-")))


def judging_socket(directory: str, run_dir: Path, token: str) -> Path:
    """Returns the path of the judging service's socket: short, and in a directory that nobody can guess."""
    name = blake2b(str(run_dir).encode(), key=token.encode(), digest_size=8).hexdigest()
    return Path(directory) / f"pipelinerl-{name}" / "judging"


def _option(name: str, value: object) -> list[str]:
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    return [] if value is None else [f"--{name}", str(value)]


def interpreter_of(engine: EngineConfig) -> str:
    """Returns the path or the name of the engine's Python. Raises PlanError if that is not here."""
    if engine.python:
        if shutil.which(engine.python) is None:
            raise PlanError(f"inference.python: {engine.python} is no interpreter that can be run here")
        return engine.python
    own = _own_python(engine)
    return str(own) if own else sys.executable


def _own_python(engine: EngineConfig) -> Path | None:
    """Returns the interpreter of the engine's virtual environment, or None if there is none."""
    python = ROOT / engine.venv / "bin" / "python" if engine.venv else None
    return python if python and python.exists() else None


def missing_engine(engine: EngineConfig) -> str | None:
    """Returns how to install the engine's package, or None if it is installed."""
    if engine.python or not engine.package or _own_python(engine) or find_spec(engine.package):
        return None
    return (
        f"{engine.package} is not installed: run `make {engine.package}-env` for CPUs, or install it for "
        f"GPUs as docs/{engine.package}.md says, or set the engine's python "
        f"(inference.python, or inference.others.{engine.package}.python) to an interpreter that has it"
    )


def _threads(config: RunConfig) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(config.world.threads), "TOKENIZERS_PARALLELISM": "false"}
