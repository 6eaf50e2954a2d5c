"""The domain of an environment of `verifiers`: an agent whose program is the environment."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from extensions.agents.domain import Agent
from extensions.agents.options import checked
from extensions.agents.verifiers.tasks import VerifiersTasks

PYTHON = Path(__file__).parents[3] / ".venv-verifiers" / "bin" / "python"
WORKER = Path(__file__).parent / "verifiers_worker" / "__main__.py"
HELD_OUT = {"idx": "::10"}


class Split(BaseModel):
    """Which tasks. taskset: options of the taskset beside those of `env`.

    select: which of the tasks, as `SelectConfig` of the package says. null = every tenth is held out, of a
        taskset that both splits share; else all.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    taskset: dict[str, Any] = {}
    select: dict[str, Any] | None = None


class Verifiers(Agent):
    """Attempts at the tasks of an environment, which rewards them.

    env: the environment as `verifiers` configures it, with taskset.id.
    train, heldout: `Split`. What is held out is not trained on.
    success_at: the reward from which an attempt is a success.
    python: that of the environment with `verifiers`; null = the one that `make verifiers-env` makes.
    path: directories with modules of environments that are not installed.
    agent: `AgentOptions`, except those that are decided here. endpoint: `EndpointOptions`.
    """

    def __init__(
        self,
        env: Mapping[str, Any],
        train: Mapping[str, Any],
        heldout: Mapping[str, Any],
        success_at: float,
        python: str | None,
        path: Sequence[str],
        agent: Mapping[str, Any],
        endpoint: Mapping[str, Any],
        seed: int = 0,
    ):
        program = Path(python).absolute() if python else PYTHON
        if not program.is_file():
            raise ValueError(f"there is no {program}, which has verifiers: make verifiers-env")
        if (
            isinstance(success_at, bool)
            or not isinstance(success_at, int | float)
            or not isfinite(success_at)
        ):
            raise ValueError(f"domain.success_at={success_at} must be a number")
        splits = splits_of(train, heldout)
        variables = {name: str(value) for name, value in (agent.get("env") or {}).items()}
        given = {
            "env": env,
            **{name: split.model_dump() for name, split in splits.items()},
            "success_at": success_at,
            "path": directories_of(path),
            "variables": sorted(variables),  # the names alone, since commands are seen by all
        }
        command = [str(program), "-P", str(WORKER), json.dumps(given)]
        tasks = VerifiersTasks([*command, "--tasks"], variables)
        super().__init__(tasks, decided(agent, command), endpoint, seed)


def splits_of(train: Mapping[str, Any], heldout: Mapping[str, Any]) -> dict[str, Split]:
    """Returns both splits, with what they select."""
    trained = checked(Split, "domain.train", train)
    held = checked(Split, "domain.heldout", heldout)
    others = {"exclude": HELD_OUT} if trained == held == Split() else {}
    if trained.select is None:
        trained = trained.model_copy(update={"select": others})
    if held.select is None:
        held = held.model_copy(update={"select": {} if held.taskset else {"include": HELD_OUT}})
    return {"train": trained, "heldout": held}


def directories_of(path: Sequence[str]) -> list[str]:
    if isinstance(path, str):
        raise ValueError(f"domain.path={path} must be a list: domain.path=[{path}]")
    for part in path:
        if not Path(part).is_dir():
            raise ValueError(f"domain.path: there is no directory {Path(part).absolute()}")
    return [str(Path(part).absolute()) for part in path]


def decided(agent: Mapping[str, Any], command: list[str]) -> dict[str, Any]:
    """Returns the options of the agent with those that are decided here. Raises ValueError for others."""
    ours = {"command": command, "serve": True, "reward": "program", "isolation": "process"}
    for name, value in ours.items():
        if agent.get(name, value) != value:
            raise ValueError(f"domain.agent.{name} cannot be set: an environment of verifiers decides it")
    return {**agent, **ours}
