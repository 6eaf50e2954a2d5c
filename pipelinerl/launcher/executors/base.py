"""The boundary between the launcher and what the jobs of a run are started on.

The launcher asks for places, starts a process in each, and looks how they fare. Two phases are needed because
the address and the port of a job are known only once it is placed. Who is started again is the launcher's
decision: an executor never does so by itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Want:
    """What a job needs before it has a place."""

    name: str  # of the job, by which all methods know it
    group: str  # the jobs of one group are placed together or not at all
    bundle: str  # the jobs of one bundle of a group are placed on one node
    cpus: float = 0.0  # cores that are reserved for it
    gpus: int = 0  # whole GPUs of one node
    port: int | None = None  # that it listens at: 0 takes a free one, None means that it does not listen
    host: str | None = None  # address that it listens at; None takes that of its node


@dataclass(frozen=True)
class Slot:
    """Where a job is placed. Its port stays reserved until the job is dropped."""

    node: str  # the node's name, for people
    address: str  # by which the other nodes reach it
    port: int | None = None
    gpus: str = ""  # the value of CUDA_VISIBLE_DEVICES
    interface: str | None = None  # of the address, for gloo; None where gloo finds it by itself


@dataclass(frozen=True)
class Process:
    """What to start in a slot."""

    command: tuple[str, ...]
    environment: dict[str, str]
    log: Path  # what it prints is appended
    has_whole_environment: bool = False  # whether `environment` is all that it is given, or beside its node's
    grace_s: float = 10.0  # to end by itself after SIGTERM, before it is killed
    ends_if_stopped: bool = False  # whether it is killed once a signal has stopped it (SIGSTOP)
    log_bytes: int = 64 << 20  # size at which its log is renamed to `log`.1 and another begins


@dataclass(frozen=True)
class Waiting:
    """The job has no place yet."""

    needs: str  # what it waits for, for people


@dataclass(frozen=True)
class Placed:
    """The job has a place, and no process has been started in it."""

    slot: Slot


@dataclass(frozen=True)
class Running:
    slot: Slot


@dataclass(frozen=True)
class Draining:
    """The process runs, and its node will be gone at the deadline."""

    slot: Slot
    deadline: float  # time.time() at which the node ends


@dataclass(frozen=True)
class Ended:
    """The process has ended, and everything that it started has too. Its place is still reserved."""

    slot: Slot
    status: int  # exit status, or minus the number of the signal that ended it


@dataclass(frozen=True)
class Lost:
    """The node, or what kept the process there, is gone. The process may live on where nothing reaches it."""

    slot: Slot | None  # the last one
    why: str


Fate = Waiting | Placed | Running | Draining | Ended | Lost


@dataclass(frozen=True)
class Capacity:
    """What an executor could place at most, and what is free now. `nodes` has a line for each node."""

    summary: str
    nodes: list[str]
    fits: list[str]  # lines that say which of the jobs that were named would have a place now


class Executor(Protocol):
    """Places jobs, starts their processes and ends them.

    Errors that the user can mend are raised as PlanError.
    """

    address: str  # of this machine, by which the nodes reach it
    notices_within_s: float  # longest time until a lost node shows in `look`; 0 where there is one node

    def capacity(self, wants: Iterable[Want]) -> Capacity:
        """Returns what there is, and how much of these would have a place; asks for none."""

    def ask(self, wants: Iterable[Want]) -> None:
        """Asks for places; returns at once. Raises PlanError for what can never be placed."""

    def look(self) -> Mapping[str, Fate]:
        """Returns the fate of every job that was asked for and not dropped. Never blocks."""

    def start(self, name: str, process: Process) -> None:
        """Starts a process in the place of a job that is `Placed`, `Ended`, or not yet started again."""

    def end(self, names: Iterable[str]) -> None:
        """Asks these processes to end: SIGTERM, and SIGKILL after their `grace_s`. Returns at once."""

    def drop(self, names: Iterable[str]) -> None:
        """Kills what is left of these jobs and gives their places back."""

    def close(self) -> None:
        """Drops every job. Nothing of them is left on any node that can be reached."""
