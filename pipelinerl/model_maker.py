"""The interface of `model.made_by`, a component that makes the model of a run without `model.path`.

The launcher builds the component when it checks a run, and calls `make` just before the start.
"""

import abc
from pathlib import Path


class ModelMaker(abc.ABC):
    """Base class of model makers. The constructor receives the configured options."""

    @property
    @abc.abstractmethod
    def directory(self) -> Path:
        """The directory of the model, which may not exist yet."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Path | None:
        """The directory of the model's tokenizer and chat template, which exists before the model.

        None if they come with the model: a plan shows no prompts before it is made.
        """

    @abc.abstractmethod
    def make(self) -> None:
        """Makes the complete model in its directory, or nothing. Raises PlanError."""
