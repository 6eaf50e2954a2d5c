"""The command and the environment of each process of a run. Plans only; starts nothing."""

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from contracts.support.addresses import in_url
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.config import EngineConfig, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.judging.child import service_command, service_environment
from pipelinerl.judging.client import SOCKET_VARIABLE
from pipelinerl.judging.isolation import clean_environment
from pipelinerl.launcher.executors.base import Slot
from pipelinerl.launcher.executors.named import executor_class
from pipelinerl.launcher.wants import RANK_0, REFERENCE, Role, members_of
from pipelinerl.paths import ROOT, importable
from pipelinerl.process import REFERENCE_VARIABLE
from pipelinerl.training.update_times import hold_timeout_s
from pipelinerl.weight_transport import LaunchContext, transport_of

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"  # torch's


@dataclass(frozen=True)
class Job:
    """One process of a run, in the place that it was given."""

    name: str
    role: Role
    slot: Slot
    command: tuple[str, ...]
    environment: dict[str, str]  # beside its node's own, unless it is complete
    has_whole_environment: bool = False  # whether `environment` is all that it is given
    url: str | None = None  # of one that serves

    @property
    def placement(self) -> str:
        return f"GPU {self.slot.gpus}" if self.slot.gpus else "CPU"


class JobPlanner:
    """Makes the command and the environment of each job from where all of them are placed.

    token: what the servers ask of their clients. streams: what processes open the streams with.
    """

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

    def plan(self, slots: Mapping[str, Slot]) -> list[Job]:
        """Returns the job of each slot. Where one needs another's address, both must be among them."""
        roles = {member.want.name: member.role for member in members_of(self._config)}
        return [self.job(name, role, slots) for name, role in roles.items() if name in slots]

    def job(self, name: str, role: Role, slots: Mapping[str, Slot]) -> Job:
        """Returns the job of this name. `slots`: its own place, and those of jobs whose address it needs."""
        slot = slots[name]
        match role:
            case "judging":
                # It is given no secret.
                command = service_command(self._run_dir)
                environment = service_environment(self.judging_socket)
                return Job(name, role, slot, command, environment, has_whole_environment=True)
            case "transport":
                host = self._config.weights.master_address or slot.address
                command = self._services[name].command(self.launch(slots), host, slot.port)
                environment = clean_environment({"PYTHONPATH": importable(), "PYTHONUNBUFFERED": "1"})
                return Job(name, role, slot, command, environment, has_whole_environment=True)
            case "server" | "reference":
                command = self._server_command(name, role, slots)
                own = _threads(self._config)
            case "actor" | "preprocessor":
                command = self._module(role)
                own = {"OMP_NUM_THREADS": "1"} | self._streams | self._socket | self._scored_by(slots)
            case "trainer":
                command = self._module(role)
                own = _threads(self._config) | self._streams | self._rendezvous(name, slots)
                own |= self._scored_by(slots) | self.transport.trainer_environment(self.launch(slots))
        network = {INTERFACE_VARIABLE: slot.interface} if slot.interface else {}
        gpus = {"CUDA_VISIBLE_DEVICES": slot.gpus}
        url = self._url(slot) if role in ("server", "reference") else None
        return Job(name, role, slot, command, self._common | network | gpus | own, url=url)

    def _module(self, name: str) -> tuple[str, ...]:
        return (sys.executable, "-m", f"pipelinerl.{name}", "--run-dir", str(self._run_dir))

    def _scored_by(self, slots: Mapping[str, Slot]) -> dict[str, str]:
        return {REFERENCE_VARIABLE: self._url(slots[REFERENCE])} if REFERENCE in slots else {}

    def _rendezvous(self, name: str, slots: Mapping[str, Slot]) -> dict[str, str]:
        return {
            "MASTER_ADDR": slots[RANK_0].address,
            "MASTER_PORT": str(slots[RANK_0].port),
            "WORLD_SIZE": str(self._config.world.trainer_ranks),
            "RANK": name.removeprefix("trainer-"),
        }

    def launch(self, slots: Mapping[str, Slot]) -> LaunchContext:
        """Returns what the transport is told of this launch. `slots`: those of its services too."""
        given = self._config.weights.master_address
        placed = {name: slots[name] for name in self._services if name in slots}
        urls = {name: f"http://{in_url(given or slot.address)}:{slot.port}" for name, slot in placed.items()}
        return LaunchContext(self._run_dir, self._token, urls)

    def _url(self, slot: Slot) -> str:
        return f"http://{in_url(self._host(slot))}:{slot.port}"

    def _host(self, slot: Slot) -> str:
        return self._config.inference.host or slot.address

    def _server_command(self, name: str, role: Role, slots: Mapping[str, Slot]) -> tuple[str, ...]:
        slot = slots[name]
        engine = engine_of(self._config, name)
        command = [_interpreter(engine), "-m", engine.module, "--host", self._host(slot)]
        command += ["--port", str(slot.port)]
        if engine.model is None and "model" not in engine.arguments:
            command += ["--model", str(self._config.model.path)]
        if role == "server" or self._config.reference.renew_every:  # the trainer sends weights to it
            command += ["--hold-timeout-s", str(hold_timeout_s(self._config.weights))]
        if role == "server":
            command += self.transport.server_options(self.launch(slots), name)
        for option, value in engine.arguments.items():
            command += _option(option.replace("_", "-"), value)
        return tuple(command)


def engine_of(config: RunConfig, name: str) -> EngineConfig:
    """Returns the engine of a server by its name, or that of the reference server."""
    if name == REFERENCE:
        return config.reference
    return config.inference.engine_of(int(name.removeprefix("server-")))


def judging_socket(directory: str, run_dir: Path, token: str) -> Path:
    """Returns where the judging service listens: a short path, in a directory that nobody can guess."""
    name = blake2b(str(run_dir).encode(), key=token.encode(), digest_size=8).hexdigest()
    return Path(directory) / f"pipelinerl-{name}" / "judging"


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
        f"{engine.package} is not installed: run `make {engine.package}-env` for CPUs, or install it for "
        f"GPUs as docs/{engine.package}.md says, or set the engine's python "
        f"(inference.python, or inference.others.{engine.package}.python) to an interpreter that has it"
    )


def _threads(config: RunConfig) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(config.world.threads), "TOKENIZERS_PARALLELISM": "false"}
