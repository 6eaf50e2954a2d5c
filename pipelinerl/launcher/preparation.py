"""What comes before a run's jobs: its parts are checked, and its model is found, made or fetched.

Called by `prepare.py`, in a forked process: it imports whatever the configuration names.
"""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig
from pipelinerl.demo_model import registry
from pipelinerl.domains.judges import judging_of
from pipelinerl.launcher.checking.checks import (
    check_components,
    check_observers,
    check_problems,
    tell_of_last_steps,
)
from pipelinerl.launcher.checking.machine_checks import check_machine
from pipelinerl.launcher.checking.model_checks import check_model
from pipelinerl.launcher.checking.model_source import Model, fetch_model, find_model, model_in
from pipelinerl.launcher.checking.same_problems import Problems, check_same
from pipelinerl.launcher.checking.teacher_check import with_absolute_teacher
from pipelinerl.launcher.checking.trial.named import has_own
from pipelinerl.launcher.executors.named import check_executor
from pipelinerl.launcher.forked import in_forked


class Checked(NamedTuple):
    """A run that was checked.

    problems: what its training problems are (`same_problems`); None if a plan would have to fetch them.
    """

    config: RunConfig
    model: Model
    problems: Problems | None


def checked(config: RunConfig, resumed: Path | None) -> Checked:
    """Checks the run, and returns its complete configuration. Raises PlanError.

    resumed: directory of the run if it is resumed.
    """
    check_executor(config)
    if has_own(config):
        from pipelinerl.launcher.checking.trial.attempt import try_parts  # it imports torch

        try_parts(config)
    check_components(config)
    check_observers(config)
    check_machine(config)
    problems = check_problems(config)
    if resumed and problems:
        check_same(resumed, problems)
    config = config.model_copy(update={"judging": judging_of(config.judging, build_domain(config))})
    config = with_absolute_teacher(config)
    model = find_model(config, registry.DEMO_MODELS[config.model.demo].directory)
    config = model.of(config)
    check_model(config, model)
    tell_of_last_steps(config)
    return Checked(config, model, problems)


def with_model_here(config: RunConfig, model: Model, may_fork: bool) -> RunConfig:
    """Makes the model or fetches it if it is not here, and checks it; returns the run's configuration.

    may_fork: whether this process may be forked.
    """
    if model.state not in ("to be made", "on the hub"):
        return config

    def bring() -> RunConfig:
        here = _make_or_fetch(model, config.model.demo)
        check_model(here.of(config), here)
        return here.of(config)

    return in_forked(bring) if may_fork else bring()


def _make_or_fetch(model: Model, demo: str) -> Model:
    """Makes the demo model, or fetches the model from the hub."""
    if model.state == "on the hub":
        return fetch_model(model.path)
    registry.make_named(demo, Path(model.path))
    return model_in(Path(model.path))
