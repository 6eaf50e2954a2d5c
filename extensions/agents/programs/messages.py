"""The messages between the actor, the pool of agents, and the process that starts them."""

from typing import Any

import msgspec

LARGEST = 1e6  # size of a reward, and of a metric
MOST_METRICS = 64
LONGEST_NAME = 80
RESULT = "result.json"  # in the directory
TIMEOUT = "timeout"  # why a program ended that was out of time
DESCRIPTORS = 3  # of a request: standard input, output and error


class AgentTask(msgspec.Struct, frozen=True):
    """What the actor asks for: a program is run on a task. url, key: of its session. task: JSON."""

    url: str
    key: str
    task: bytes


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a program says of its attempt. The reward counts with `agent.reward=program` alone.

    truncated: True if the program ended the attempt early, such as by a limit of its own.
    """

    answer: str | None = None
    reward: float | None = None
    success: bool | None = None
    truncated: bool = False
    metrics: dict[str, float] = {}


class Run(msgspec.Struct, frozen=True):
    """How a program ended. why: the reason why it is no success; "" if it has a result.

    words: the last line that it printed.
    """

    why: str = ""
    result: Result | None = None
    words: str = ""


class AgentLimits(msgspec.Struct, frozen=True):
    """memory_bytes: writable memory of each process. disk_bytes: of the directory, and of each file."""

    memory_bytes: int
    disk_bytes: int
    open_files: int = 1024
    processes: int = 4096  # of all programs; the kernel counts those of the user, and does not limit root


class AgentSetup(msgspec.Struct, frozen=True):
    """The first message to the template.

    environment: variables of all programs. readable: paths that a fenced program may read and execute.
    """

    command: list[str]
    environment: dict[str, str]
    is_fenced: bool
    limits: AgentLimits
    readable: list[str]


class StartAgent(msgspec.Struct, frozen=True, tag=True):
    """A request to start a program. url, key: of its session. directory: its own."""

    worker: int
    url: str
    key: str
    directory: str


def read_result(raw: bytes) -> Result:
    """Returns the result. Raises ValueError if it is no JSON of this form, or a number is not finite."""
    result = msgspec.json.decode(raw, type=Result)
    checked_numbers(result)
    return result


def checked_numbers(result: Result) -> None:
    numbers: dict[str, Any] = result.metrics | ({} if result.reward is None else {"reward": result.reward})
    if len(numbers) > MOST_METRICS:
        raise ValueError(f"there are more than {MOST_METRICS} metrics")
    for name, number in numbers.items():
        if not abs(number) <= LARGEST:  # nan too
            raise ValueError(
                f"{name[:LONGEST_NAME]} is {number}, which is more than {LARGEST:g}, or no number"
            )
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise ValueError("a name of a metric is too long, or is not printable")
