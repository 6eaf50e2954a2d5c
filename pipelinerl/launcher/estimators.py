"""The base class of what estimates how long a run takes, for its plan (`estimate` of the configuration)."""

import abc
from collections.abc import Iterator

from contracts.model_shape import ModelShape
from pipelinerl.config import RunConfig


class Estimator(abc.ABC):
    """Estimates the time and the records of a run. Its options are those of the configuration."""

    @abc.abstractmethod
    def lines(self, config: RunConfig, shape: ModelShape) -> Iterator[str]:
        """Yields lines for the plan, each with what it assumes. Raises ValueError if it cannot estimate."""
