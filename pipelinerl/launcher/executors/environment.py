"""Which of a node's environment variables its jobs are given."""

import re
from collections.abc import Mapping

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.process import REDIS_VARIABLE

# Secrets, what Ray gives its own workers, and the launcher's place in a job of torchrun's or SLURM's.
WITHHELD = re.compile(
    rf"{REDIS_VARIABLE}|{TOKEN_VARIABLE}|RAY_\w+"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)


def node_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that a job inherits from the process that starts it."""
    return {name: value for name, value in environment.items() if not WITHHELD.fullmatch(name)}
