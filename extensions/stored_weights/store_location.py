"""The location of a run's store, which the launcher passes to the trainer by environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STORE_VARIABLE = "PIPELINERL_WEIGHT_STORE"  # the store's directory
ORIGIN_VARIABLE = "PIPELINERL_ORIGIN"  # URL at which the store is served


@dataclass(frozen=True)
class StoreLocation:
    """The location of a run's store."""

    run_dir: Path  # directory of the run, with the key that signs the manifests
    directory: Path  # directory of the store
    origin: str | None = None  # URL at which the store is served

    @classmethod
    def from_environment(cls, run_dir: Path, variables: Mapping[str, str]) -> "StoreLocation":
        """Returns the location that the launcher has set in the environment `variables`."""
        return cls(run_dir, Path(variables[STORE_VARIABLE]), variables.get(ORIGIN_VARIABLE))
