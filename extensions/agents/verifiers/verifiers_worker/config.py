"""The configuration of an environment, and what of it cannot be trained."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.utils.compile import validate_pairing
from verifiers.v1.utils.loaders import env_config_type, load_harness, taskset_class

Made = TypeVar("Made")


def checked(where: str, make: Callable[[], Made], known: Iterable[str] = ()) -> Made:
    """Returns what is made of a section. Raises ValueError, which names the key of its first fault.

    known: the options of the section.
    """
    try:
        return make()
    except ModuleNotFoundError as error:
        raise ValueError(f"{error}; domain.path=[DIR] finds modules that are not installed") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join([where, *map(str, first["loc"])])
        options = f"; there are {', '.join(sorted(known))}" if known else ""
        raise ValueError(f"{key}: {first['msg']}{options}") from error


def config_of(given: dict[str, Any], variables: list[str]) -> tuple[vf.EnvConfig, str]:
    """Returns the configuration, and the name of the seat that the model has.

    variables: names of those of the worker. Raises ValueError for what cannot be trained.
    """
    given = dict(given)
    taskset = given.get("taskset") or {}
    if not taskset.get("id"):
        raise ValueError("it names no taskset: set domain.env.taskset.id")
    kind = checked("domain.env", lambda: env_config_type(taskset["id"], given.get("id") or ""))
    seats = [name for name, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)]
    unplaced = [name for name in seats if not (given.get(name) or {}).get("runtime")]
    for name in unplaced:
        if kind.model_fields[name].default.runtime.type == "prime":  # the package's default
            given[name] = {**(given.get(name) or {}), "runtime": {"type": "subprocess"}}
    config = checked("domain.env", lambda: kind.model_validate(given))
    for name, seat in agent_config_fields(config).items():
        _check_seat(config, name, seat, name in unplaced, variables)
    ours = [name for name, seat in agent_config_fields(config).items() if seat.client is None]
    if len(ours) != 1:
        raise ValueError(
            f"one agent is trained, and {len(ours)} have no client of their own ({', '.join(ours)}); "
            "give others one: +domain.env.NAME.client"
        )
    if config.retries != vf.RetryConfig():
        raise ValueError("domain.env.retries would train what was given up; the run tries again by itself")
    return config, ours[0]


def _check_seat(
    config: vf.EnvConfig, name: str, seat: vf.AgentConfig, is_unplaced: bool, variables: list[str]
) -> None:
    """Raises ValueError for an agent that cannot be trained, or whose parts do not fit."""
    where = f"domain.env.{name}"
    harness = load_harness(config.agent_harnesses()[name])
    if is_unplaced and seat.runtime.type == "subprocess" and harness.EXECUTES_CODE:
        raise ValueError(
            f"the harness {harness.config.id} runs the model's commands: say where, with "
            f'+{where}.runtime.type=docker, or subprocess for this machine; the harness "null" only chats'
        )
    if seat.runtime.type == "prime" and "PRIME_API_KEY" not in variables:
        raise ValueError(f"{where}.runtime.type=prime needs +domain.agent.env.PRIME_API_KEY")
    if seat.retries != vf.RetryConfig():
        raise ValueError(f"{where}.retries would train what was given up; the run tries again by itself")
    kind = taskset_class(config.taskset.id)
    tools = [*kind.toolsets(config.taskset), *kind.task_type().toolsets(config.taskset.task)]
    validate_pairing(harness, kind.task_type(), seat.runtime, tools=tools)
