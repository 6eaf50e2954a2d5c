"""The interface between the launcher and the executors that run its jobs.

The launcher requests placements, starts a process in each, and polls their state. Two phases are needed
because the address and the port of a job are known only once it is placed. The launcher decides which jobs
restart: an executor never restarts a job by itself.
"""

import abc
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.components import checked_type, named_class, typed_options
from pipelinerl.config import RunConfig, Section

# Secrets (URLs may have some), variables of Ray's workers, and the launcher's rank in torchrun or SLURM.
WITHHELD = re.compile(
    rf"PIPELINERL_\w*URL|{TOKEN_VARIABLE}|RAY_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that a job needs, all on one node."""

    name: str  # the job's name in all methods
    group: str  # the jobs of one group are placed together or not at all
    bundle: str  # the jobs of one bundle of a group are placed on one node
    cpus: float = 0.0  # cores reserved for the job
    gpus: int = 0
    port: int | None = None  # port to listen at; 0 takes a free one, None if the job does not listen
    host: str | None = None  # address to listen at; None takes its node's address
    port_key: str = "inference.base_port"  # the keys that set port and host, for messages
    host_key: str = "inference.host"
    gpu_pool: str = ""  # requests with different pools may have the same GPUs


@dataclass(frozen=True)
class Placement:
    """A reservation on a node for one job. The port stays reserved until the job is released."""

    node: str  # the node's name, for messages
    address: str  # the address by which other nodes reach it
    port: int | None = None
    gpus: str = ""  # the value of CUDA_VISIBLE_DEVICES
    interface: str | None = None  # network interface of the address, for gloo; None if gloo finds it


@dataclass(frozen=True)
class Process:
    """A process to start in a placement."""

    command: tuple[str, ...]
    environment: dict[str, str]
    log: Path  # file to which its output is appended
    has_whole_environment: bool = False  # whether `environment` replaces the node's variables or adds to them
    grace_s: float = 10.0  # seconds between SIGTERM and SIGKILL
    ends_if_stopped: bool = False  # whether it is killed if a signal stops it (SIGSTOP)
    may_be_forked: bool = False  # whether it may see the memory of its owner, with the run's secrets
    log_bytes: int = 64 << 20  # size at which its log is renamed to `log`.1 and a new one begins


@dataclass(frozen=True)
class Waiting:
    """The job is not placed yet."""

    needs: str  # the missing resources, as a message


@dataclass(frozen=True)
class Placed:
    """The job is placed, and no process has been started."""

    placement: Placement


@dataclass(frozen=True)
class Running:
    placement: Placement


@dataclass(frozen=True)
class Draining:
    """The process runs on a node that will end at the deadline."""

    placement: Placement
    deadline: float  # time.time() at which the node ends


@dataclass(frozen=True)
class Ended:
    """The process and everything that it started have ended. Its placement is still reserved."""

    placement: Placement
    status: int  # exit status, or minus the number of the signal that ended it


@dataclass(frozen=True)
class Lost:
    """The node or its keeper process is lost. The job's process may still run, out of reach."""

    placement: Placement | None  # the job's last one
    why: str


JobState = Waiting | Placed | Running | Draining | Ended | Lost


@dataclass(frozen=True)
class Capacity:
    """The resources of an executor, and which of them are free. `nodes` has a line for each node."""

    summary: str
    nodes: list[str]
    fits: list[str]  # lines that tell which of the given jobs could be placed now


class Executor(abc.ABC):
    """An object that places jobs, starts their processes and ends them.

    The configuration names its class; `Options` has the keys of `executor`. Errors that the user can fix are
    raised as PlanError. Importing the class must not import a library that only its instance needs.
    """

    Options: ClassVar[type[Section]] = Section
    spans_nodes: ClassVar[bool] = False  # whether jobs may be placed on other machines
    may_fork: ClassVar[bool] = True  # whether this process may still be forked after `request`

    address: str  # this machine's address, by which the nodes reach it
    notices_within_s: float = 0.0  # longest time until `poll` reports a lost node; 0 if there is one node
    place_timeout_s: float = 0.0  # longest wait for placements, at the start and for jobs on lost nodes

    @classmethod
    def missing(cls) -> str | None:
        """Returns how to install a package that is needed and not installed; None if none is."""
        return None

    @classmethod  # noqa: B027
    def check(cls, config: RunConfig) -> None:
        """Raises PlanError for a run that it cannot execute. Must not access a machine or a cluster."""

    @classmethod
    @abc.abstractmethod
    def of(cls, config: RunConfig, options: Section) -> Self:
        """Returns the executor of a run. Must not reserve resources or join a cluster."""

    @abc.abstractmethod
    def capacity(self, requests: Iterable[ResourceRequest]) -> Capacity:
        """Returns the resources, and which of these jobs could be placed. Reserves nothing."""

    @abc.abstractmethod
    def request(self, requests: Iterable[ResourceRequest]) -> None:
        """Requests placements, and returns at once. Raises PlanError for jobs that can never be placed."""

    @abc.abstractmethod
    def poll(self) -> Mapping[str, JobState]:
        """Returns the state of every job that was requested and not released. Never blocks."""

    @abc.abstractmethod
    def start(self, name: str, process: Process) -> None:
        """Starts the process of a job that is `Placed`, `Ended`, or not yet started again."""

    @abc.abstractmethod
    def end(self, names: Iterable[str]) -> None:
        """Asks these processes to end: SIGTERM, and SIGKILL after their `grace_s`. Returns at once."""

    @abc.abstractmethod
    def release(self, names: Iterable[str]) -> None:
        """Kills the remaining processes of these jobs, and releases their placements."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases every job. No process of a job is left on any node that can be reached."""


def node_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a job inherits from the process that starts it."""
    return {name: value for name, value in environment.items() if not WITHHELD.fullmatch(name)}


def executor_class(config: RunConfig) -> type[Executor]:
    """Returns the class that the configuration names. Raises PlanError if it is no Executor."""
    return named_class("executor", config.executor, Executor)


def executor_of(config: RunConfig) -> Executor:
    """Returns the executor of a run. Raises PlanError for wrong options."""
    named = executor_class(config)
    executor = named.of(config, typed_options("executor", config.executor, named.Options))
    return checked_type("executor", config.executor, "of", executor, Executor)


def check_executor(config: RunConfig) -> None:
    """Raises PlanError for an unknown executor, wrong options, or a run that it cannot execute."""
    named = executor_class(config)
    typed_options("executor", config.executor, named.Options)
    named.check(config)
