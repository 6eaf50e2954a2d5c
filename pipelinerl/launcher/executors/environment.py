"""Selects the environment variables that a node's jobs inherit."""

import re
from collections.abc import Mapping

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.process import REDIS_VARIABLE

# Secrets, variables for Ray's own workers, and the launcher's own rank in a job of torchrun or SLURM.
WITHHELD = re.compile(
    rf"{REDIS_VARIABLE}|{TOKEN_VARIABLE}|RAY_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)


def node_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a job inherits from the process that starts it."""
    return {name: value for name, value in environment.items() if not WITHHELD.fullmatch(name)}
