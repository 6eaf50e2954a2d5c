"""The options of agents: the sections `agent` and `endpoint` of the domain."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from contracts.support.messages import problem_line
from extensions.agents.programs.messages import LARGEST

GIVEN = {"HOME", "TMPDIR", "RESULT", "OPENAI_BASE_URL", "OPENAI_API_KEY"}
Options = TypeVar("Options", bound=BaseModel)


class AgentOptions(BaseModel):
    """Which programs run, and what becomes of them.

    command: the program and its arguments. serve: True if one program runs all attempts.
    tools: True if the model shows tools. reward: who says it. crash_reward: of a program that fails.
    env: variables of its environment. files: paths that a fenced program may read, beside its command's.
    isolation: fenced, process, or auto for the stronger one that passes the self-test.
    timeout_s: longest time of an attempt. programs: attempts at once.
    memory_bytes: writable memory of a process. disk_bytes: of the program's directory.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    command: list[str]
    serve: bool = False
    tools: bool = False
    reward: Literal["verifier", "program"] = "verifier"
    crash_reward: float = Field(0.0, ge=-LARGEST, le=LARGEST)
    env: dict[str, str | int | float] = {}
    files: list[str] = []
    isolation: Literal["auto", "fenced", "process"] = "auto"
    timeout_s: float = Field(600.0, gt=0)
    programs: int = Field(64, ge=1)
    memory_bytes: int = Field(4 << 30, ge=1 << 26)
    disk_bytes: int = Field(1 << 28, ge=1 << 20)

    @field_validator("command")
    @classmethod
    def _named(cls, command: list[str]) -> list[str]:
        if not command:
            raise ValueError("it needs the program and its arguments, such as [python, my_agent.py]")
        return command

    @field_validator("env")
    @classmethod
    def _possible(cls, env: dict[str, str | int | float]) -> dict[str, str | int | float]:
        for name, value in env.items():
            if name in GIVEN:
                raise ValueError(f"{name} is given to each program, and cannot be set")
            if not name or "=" in name or "\0" in f"{name}{value}":
                raise ValueError(f"{name!r} cannot be a variable with this value")
        return env


class EndpointOptions(BaseModel):
    """How requests are answered.

    host, port: where the endpoint listens; port 0 = a free one.
    history: sampled = sampled tokens stay in the context; rendered = each prompt is rendered as a whole.
    train: all = all answers; path = those on the way to the last one.
    forced_calls: auto = a forced call is an offered one; refuse = it is refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, lt=2**16)
    history: Literal["sampled", "rendered"] = "sampled"
    train: Literal["all", "path"] = "all"
    forced_calls: Literal["auto", "refuse"] = "auto"


def checked(kind: type[Options], section: str, given: Mapping[str, Any]) -> Options:
    """Returns the options of a section. Raises ValueError with the first problem, in one line."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{section} must be a mapping of options, and is {given}")
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        line = problem_line(error.errors()[0])
        raise ValueError(f"{section}.{line}") from None  # the launcher would show the cause
