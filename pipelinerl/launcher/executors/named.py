"""The executor that the configuration names, by its class. Called by the launcher."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipelinerl.components import named_class, typed_options
from pipelinerl.config import RunConfig
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import fault, place_of
from pipelinerl.launcher.executors.base import Executor


def executor_class(config: RunConfig) -> type[Executor]:
    """Returns the class that the configuration names. Raises PlanError if it is none."""
    return named_class("executor", config.executor, Executor)


def executor_of(config: RunConfig) -> Executor:
    """Returns the executor of a run. Raises PlanError for wrong options."""
    named = executor_class(config)
    options = typed_options("executor", config.executor, named.Options)
    with _raises_plan_error(named, "of"):
        return named.of(config, options)


def check_executor(config: RunConfig) -> None:
    """Raises PlanError for an executor that there is not, wrong options, or a run that it cannot execute."""
    named = executor_class(config)
    typed_options("executor", config.executor, named.Options)
    with _raises_plan_error(named, "check"):
        named.check(config)


@contextmanager
def _raises_plan_error(named: type[Executor], method: str) -> Iterator[None]:
    """Raises PartError in the place of another exception that code of the user's raises in this method."""
    try:
        yield
    except PlanError:
        raise
    except Exception as error:
        if place_of(error) is None:
            raise
        raise PartError(fault(named, f"no error but PlanError in `{method}`", error)) from error
