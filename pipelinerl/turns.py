"""The interface of schedules by which servers and trainer take turns, on memory that holds one of them.

`schedule._target_` names the class, and the other keys of `schedule` are its options. Launcher, actor and
trainer each make an instance from the run's configuration. With a schedule that is a word, there is none.
"""

import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipelinerl.components import named_class, typed_options
from pipelinerl.config import Component, RunConfig, Section

if TYPE_CHECKING:  # imports torch, which the launcher does not need
    from pipelinerl.training.turn_taking import TurnContext, TurnTaking


class Turns(abc.ABC):
    """A schedule with two phases: servers generate, or they sleep and the trainer trains.

    The constructor raises PlanError for wrong options.
    """

    class Options(Section):
        """The schedule's own keys of `schedule`."""

    def __init__(self, config: RunConfig):
        self.config = config
        self.options = typed_options("schedule", config.schedule, self.Options)

    def check(self) -> None:  # noqa: B027
        """Raises PlanError if the schedule does not suit the run."""

    def plan_notes(self) -> Iterator[str]:
        """Yields lines for `plan=true`."""
        yield from ()

    def needed_capabilities(self) -> dict[str, str]:
        """Returns the capabilities that servers must declare, each with the setting that needs it."""
        return {}

    @property
    @abc.abstractmethod
    def hold_timeout_s(self) -> float:
        """The time for which a server that sleeps must let requests wait, in seconds."""

    @abc.abstractmethod
    def of_trainer(self, context: "TurnContext") -> "TurnTaking":
        """Returns the part of one trainer rank."""


def turns_of(config: RunConfig) -> Turns | None:
    """Returns the class that `schedule` names, or None if it is a word. Raises PlanError."""
    if not isinstance(config.schedule, Component):
        return None
    return named_class("schedule", config.schedule, Turns)(config)
