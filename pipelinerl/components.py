"""Builds the components that the configuration names by class path (`_target_`)."""

from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import ValidationError

from contracts.support.messages import nearest, one_line, problem_line
from pipelinerl.config import Component, RunConfig, Section
from pipelinerl.domains.base import Domain
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import describe_fault
from pipelinerl.model_maker import ModelMaker
from pipelinerl.observers import Observer
from pipelinerl.samplers.base import Sampler

Named = TypeVar("Named")
Options = TypeVar("Options", bound=Section)


def instantiate(component: Component, **context: object) -> object:
    """Returns an instance with the configured options. context: arguments from the run, such as the seed."""
    import hydra.utils  # slow, and not every process builds components

    options = component.model_dump(by_alias=True)
    # "all" converts to lists and dicts, because OmegaConf's cannot contain the objects.
    make = hydra.utils.instantiate({"_convert_": "all"} | options | {"_partial_": True})
    return make(**context)


def named_class(section: str, component: Component, base: type[Named]) -> type[Named]:
    """Returns the class of a section's component. Raises PlanError unless it is a subclass of `base`."""
    given = f"{section}._target_={component.target}"
    try:
        found = resolve_name(component.target)
    except Exception as error:  # any exception of the imported module
        how = "; write module.Class" if "/" in component.target else ""
        raise PlanError(f"{given} cannot be imported: {one_line(error)}{how}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PlanError(f"{given} is no {base.__name__} ({base.__module__.replace('.', '/')}.py)")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise PlanError(f"{given} has no method {', '.join(missing)}")
    return found


def typed_options(section: str, component: Component, schema: type[Options]) -> Options:
    """Returns the options of a section's component. Raises PlanError for wrong and unknown options."""
    if not (isinstance(schema, type) and issubclass(schema, Section)):
        raise PlanError(f"{section}._target_={component.target}: its Options is no pipelinerl.config.Section")
    try:
        return schema.model_validate(component.options)
    except ValidationError as error:
        problems = []
        hint = ""
        for problem in error.errors():
            near = ""
            if problem["type"] == "extra_forbidden":
                near = nearest(str(problem["loc"][0]), schema.model_fields)
                hint = hint if near else of_another_class(section, component.target)
            problems.append(f"{section}.{problem_line(problem)}{near}")
        raise PlanError("; ".join(problems) + hint) from error


def of_another_class(section: str, target: str) -> str:
    """Returns what to write if a file in `conf/` has set an option for another class."""
    return f"; if a file of conf/ set it for another class, write ~{section} +{section}._target_={target}"


def checked_type(section: str, component: Component, method: str, came: object, expected: type) -> Any:
    """Returns what a method of a user's class returned. Raises PartError if it has another type."""
    if not isinstance(came, expected):
        raise PartError(
            describe_fault(component.target, f"an object of class {expected.__name__}", came, method, section)
        )
    return came


def build_domain(config: RunConfig) -> Domain:
    return instantiate(config.domain, seed=config.seed)


def build_model_maker(config: RunConfig) -> ModelMaker | None:
    return instantiate(config.model.made_by) if config.model.made_by else None


def build_observers(config: RunConfig) -> list[Observer]:
    return [instantiate(component) for component in config.observers.values()]


def build_sampler(config: RunConfig, domain: Domain) -> Sampler:
    return instantiate(config.sampler, domain=domain, seed=config.seed)


def needed_capabilities(config: RunConfig, domain: Domain) -> dict[str, str]:
    """Returns the capabilities that rollouts need of every server, each with the reason.

    Servers need no tools if the model has a tokenizer: the pipeline then renders prompts and parses calls.
    """
    needs = domain.needs if config.inference.model else domain.needs - {"tools"}
    seeded = {"seed": "sampling.seeded=true needs seeds"} if config.sampling.seeded else {}
    why = "the domain {} needs {} (docs/extend.md)"
    return seeded | {name: why.format(domain.name, name) for name in sorted(needs)}
