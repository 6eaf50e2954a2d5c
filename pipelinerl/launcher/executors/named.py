"""The executor that the configuration names, by its class. Called by the launcher."""

from pipelinerl.components import named_class, typed_options
from pipelinerl.config import RunConfig
from pipelinerl.launcher.executors.base import Executor


def executor_class(config: RunConfig) -> type[Executor]:
    """Returns the class that the configuration names. Raises PlanError if it is none."""
    return named_class("executor", config.executor, Executor)


def executor_of(config: RunConfig) -> Executor:
    """Returns the executor of a run. Raises PlanError for wrong options."""
    named = executor_class(config)
    options = typed_options("executor", config.executor, named.Options)
    return named.of(config, options)


def check_executor(config: RunConfig) -> None:
    """Raises PlanError for an executor that there is not, wrong options, or a run that it cannot execute."""
    named = executor_class(config)
    typed_options("executor", config.executor, named.Options)
    named.check(config)
