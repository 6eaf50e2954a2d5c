"""Makes the model of a run that names none by `model.path`: the interface of `model.made_by`.

The launcher builds a maker while it checks a run, and has it make the model just before the start.
"""

import abc
from pathlib import Path


class ModelMaker(abc.ABC):
    """Base class of what makes a model. The constructor receives the configured options."""

    @property
    @abc.abstractmethod
    def directory(self) -> Path:
        """Where the model is, or will be."""

    @property
    @abc.abstractmethod
    def tokenizer(self) -> Path:
        """A directory with the model's tokenizer and chat template. It is there before the model is."""

    @abc.abstractmethod
    def make(self) -> None:
        """Makes the model in its directory, whole or not at all. Raises PlanError."""
