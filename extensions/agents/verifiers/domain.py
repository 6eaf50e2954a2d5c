"""The domain of an environment of `verifiers`: an agent whose program is the environment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extensions.agents.domain import Agent
from extensions.agents.verifiers.tasks import VerifiersTasks

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-verifiers" / "bin" / "python"
WORKER = Path(__file__).with_name("worker.py")


class Verifiers(Agent):
    """Attempts at the tasks of an environment, which rewards them.

    env: the environment as `verifiers` configures it, with taskset.id.
    train, heldout: which tasks, by `select`, and what `taskset` has beside that of `env`.
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
        if agent.get("isolation", "process") != "process":
            raise ValueError(
                "domain.agent.isolation must be process: an environment of verifiers opens ports"
            )
        given = {
            "env": env,
            "train": train,
            "heldout": heldout,
            "success_at": success_at,
            "path": [str(Path(part).absolute()) for part in path],
            "variables": dict(agent.get("env", {})),
        }
        command = [str(program), "-P", str(WORKER), json.dumps(given)]
        decided = {"command": command, "serve": True, "reward": "program", "isolation": "process"}
        super().__init__(VerifiersTasks([*command, "--tasks"]), {**agent, **decided}, endpoint, seed)
