"""Where a run's store is, as the launcher tells the trainer through its environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STORE_VARIABLE = "PIPELINERL_WEIGHT_STORE"  # the directory of the store of weights
ORIGIN_VARIABLE = "PIPELINERL_ORIGIN"  # the URL at which the store is served


@dataclass(frozen=True)
class StorePlace:
    """Where a run's store is. run_dir: the run's directory, which has the key that signs its manifests.

    directory: of the store. origin: the URL at which it is served, if any.
    """

    run_dir: Path
    directory: Path
    origin: str | None = None

    @classmethod
    def given(cls, run_dir: Path, variables: Mapping[str, str]) -> "StorePlace":
        """Returns the place that the launcher has named in the variables of the environment."""
        return cls(run_dir, Path(variables[STORE_VARIABLE]), variables.get(ORIGIN_VARIABLE))
