"""The executor that the configuration names, by its class. Called by the launcher."""

from pkgutil import resolve_name

from pydantic import ValidationError

from contracts.support.messages import one_line, problem_line
from pipelinerl.config import RunConfig, Section
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor
from pipelinerl.launcher.explain import nearest


def executor_class(config: RunConfig) -> type[Executor]:
    """Returns the class that the configuration names. Raises PlanError if it is none."""
    target = config.executor.target
    try:
        found = resolve_name(target)
    except Exception as error:  # of a module of one's own, while it is imported
        raise PlanError(f"executor._target_={target} cannot be imported: {one_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Executor)):
        raise PlanError(f"executor._target_={target} is no Executor (pipelinerl/launcher/executors/base.py)")
    return found


def executor_of(config: RunConfig) -> Executor:
    """Returns the executor of a run. Raises PlanError for wrong options."""
    named = executor_class(config)
    return named.of(config, _options(config, named.Options))


def check_executor(config: RunConfig) -> None:
    """Raises PlanError for an executor that there is not, wrong options, or a run that it cannot execute."""
    named = executor_class(config)
    _options(config, named.Options)
    named.check(config)
    weights = config.weights
    if named.spans_nodes and weights.transport == "shared" and weights.directory is None:
        raise PlanError(
            "weights.transport=shared with executor=ray: servers on other nodes do not see /dev/shm of the "
            "trainer's; set weights.directory to one that all nodes share, or weights=relay"
        )


def _options(config: RunConfig, schema: type[Section]) -> Section:
    given = config.executor.model_dump(by_alias=True)
    del given["_target_"]
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            unknown = problem["type"] == "extra_forbidden"
            near = nearest(str(problem["loc"][0]), schema.model_fields) if unknown else ""
            problems.append(f"executor.{problem_line(problem)}{near}")
        raise PlanError("; ".join(problems)) from error
