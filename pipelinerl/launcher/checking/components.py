"""Builds and checks the components that the configuration names, and checks this machine.

Called by `prepare.py`, by the plan and by the trial.
"""

import os
import re
import shutil
import socket
import sys
import traceback
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TypeVar

from contracts.support.messages import first_line, nearest, one_line
from pipelinerl.batching.of_run import build_packing
from pipelinerl.components import build_domain, build_observers, checked_type, instantiate, of_another_class
from pipelinerl.config import Component, RunConfig
from pipelinerl.errors import PartError, PlanError
from pipelinerl.errors.part_faults import describe_fault
from pipelinerl.launcher.checking.combinations import check_demonstrated, check_together
from pipelinerl.launcher.checking.prerequisites import driver_cuda, fault_of_driver, lacking
from pipelinerl.launcher.executors.base import executor_class
from pipelinerl.launcher.jobs import missing_engine
from pipelinerl.launcher.resource_requests import job_specs
from pipelinerl.observers import Observer
from pipelinerl.turns import turns_of
from pipelinerl.weight_transport import transport_of

SINGLE = ("objective", "advantage", "normalisation", "health", "trainer")
LISTS = ("filters", "regularisers", "rewards")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
COUNTED_BY = {"filters": "reason", "rewards": "name"}
PROCESSES_PER_CPU = 128  # 64 scripted servers run on two CPUs
Made = TypeVar("Made")


def check_components(config: RunConfig) -> None:
    """Builds every component with its options. Raises PlanError."""
    for name in ("domain", "packing", "sampler"):
        _check_is_class(name, getattr(config, name))
    domain = checked("domain", lambda: build_domain(config))
    packing = checked("packing", lambda: build_packing(config))
    named = [(name, getattr(config, name)) for name in SINGLE]
    named += [(name, component) for name in LISTS for component in getattr(config, name)]
    if wrong := [name for name in config.token_fields if not name.isidentifier()]:
        raise PlanError(f"token_fields: {wrong[0]} is no name; use letters, digits and _")
    built: dict[str, list[object]] = {"domain": [domain], "packing": [packing]}
    built |= {name: [] for name, _ in named}
    for name, component in named:
        _check_is_class(name, component)
        instance = checked(name, lambda component=component: instantiate(component))
        _check_needs(config, name, instance)
        built[name].append(instance)
    labels = {name: [_label_of(one, name) for one in built.get(name, [])] for name in COUNTED_BY}
    if len(labels["rewards"]) > len(set(labels["rewards"])):
        raise PlanError(f"rewards: two terms have the same name, of {', '.join(labels['rewards'])}")
    check_together(config, built)
    transport = transport_of(config)
    transport.check()
    if turns := turns_of(config):
        turns.check()
    checked_type("weights", config.weights, "needed_capabilities", transport.needed_capabilities(), dict)
    check_demonstrated(config, built)


def check_observers(config: RunConfig, run_dir: Path, is_resumed: bool) -> None:
    """Builds every observer. Raises PlanError, also if two processes would have the same log."""
    logs = {request.name for _, request in job_specs(config)} | {"judging"}
    for name, component in config.observers.items():
        key = f"observers.{name}"
        observer = checked(key, lambda component=component: instantiate(component))
        if not isinstance(observer, Observer):
            raise PlanError(f"{key}._target_={component.target} is no Observer (pipelinerl/observers.py)")
        if not FILE_NAME.fullmatch(observer.name):
            raise PlanError(
                f"{key}: its name {observer.name!r} is no name of a file; use letters, digits and -"
            )
        if observer.name in logs:
            raise PlanError(f"{key}: there are two processes with the name {observer.name}; leave one out")
        _check_command(key, observer)
        if reason := observer.refusal(config.model_dump(by_alias=True), run_dir, is_resumed):
            raise PlanError(f"{key}: {reason}")
        logs.add(observer.name)


def _check_command(key: str, observer: Observer) -> None:
    try:
        command = observer.command(Path("runs/latest"))
        file = observer.announces(Path("runs/latest"))
    except Exception as error:
        raise PartError(describe_fault(observer, "a command, and a file or None", error, role=key)) from error
    if not (file is None or isinstance(file, Path)):
        raise PartError(describe_fault(observer, "a Path or None", file, "announces", key))
    if not (command and isinstance(command, tuple) and all(isinstance(word, str) for word in command)):
        raise PartError(describe_fault(observer, "a command: a tuple of str", command, "command", key))
    if shutil.which(command[0]) is None and observer.missing() is None:
        raise PlanError(f"{key}: its command begins with {command[0]!r}, which is no program on this machine")


def warn_of_decay(config: RunConfig) -> None:
    """Prints a warning if the learning rate reaches 0 before the last step."""
    optimizer = config.optimizer
    if optimizer.decay_steps is None:
        return
    last = optimizer.warmup_steps + optimizer.decay_steps
    if last < config.max_steps:
        print(
            f"warning: optimizer.decay_steps={optimizer.decay_steps}: the learning rate is 0 from step "
            f"{last + 1} on, and max_steps={config.max_steps}; set "
            f"optimizer.decay_steps={config.max_steps - optimizer.warmup_steps}, or null"
        )


def _check_is_class(name: str, component: Component) -> None:
    try:
        found = resolve_name(component.target)
    except Exception:  # building the component reports the error
        return
    if name == "trainer" and isinstance(found, type) and not hasattr(found, "needs_model"):
        raise PlanError(f"{name}._target_={component.target} is no TrainerWorker (contracts/trainer.py)")
    if not isinstance(found, type):
        raise PlanError(
            f"{name}._target_={component.target} is {type(found).__name__} and no class; "
            f"conf/{name}/ has the classes that ship"
        )


def _label_of(component: object, name: str) -> str:
    attribute = COUNTED_BY[name]
    if not getattr(component, attribute, None):
        raise PlanError(f"{name}: {type(component).__name__} has no `{attribute}`, by which it is counted")
    return getattr(component, attribute)


def _check_needs(config: RunConfig, name: str, component: object) -> None:
    """Checks the requirements that the component, or the objective inside it, declares by attributes."""
    if inner := getattr(component, "policy", None):
        _check_needs(config, name, inner)
    given = {
        "needs_reference": (config.reference, "a reference server: set reference=transformers"),
        "needs_values": (has_value_head(config.trainer), "trainer.value_head=true"),
        "needs_repetition": (config.rollout.repetition, "rollout.repetition: nothing is stopped without"),
    }
    for need, (there, how) in given.items():
        if getattr(component, need, False) and not there:
            raise PlanError(f"{name}: {type(component).__name__} needs {how}")
    for field in getattr(component, "needs_token_fields", ()):
        if field not in config.token_fields:
            how = f"declare its dtype and fill, like +token_fields.{field}='{{dtype: float32, fill: 0.0}}'"
            raise PlanError(f"{name}: {type(component).__name__} needs token_fields.{field}: {how}")


def has_value_head(trainer: Component) -> bool:
    """Returns True if the trainer, or the one inside it, has a value head."""
    options = trainer.model_dump()
    return any(each.get("value_head", False) for each in (options, options.get("inner", {})))


def checked(name: str, make: Callable[[], Made]) -> Made:
    """Returns the result of `make`. Raises PlanError in place of its error, or of that error's cause."""
    try:
        return make()
    except Exception as error:
        cause = error.__cause__ or error
        why = _not_found(str(cause)) or _no_option(name, cause) or one_line(cause)
        raise PlanError(f"{name}: {why}") from error


def _no_option(section: str, error: BaseException) -> str | None:
    """Returns a message for an unknown option of a constructor, or None for another error."""
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    found = found or re.fullmatch(r"(\w+)\(\) takes no arguments()", str(error))
    if found is None:
        return None
    name, unknown = found.groups()
    frames = traceback.walk_tb(error.__traceback__)  # the called class is one of their local variables
    local = (value for frame, _ in frames for value in frame.f_locals.values())
    classes = [one for one in local if isinstance(one, type) and one.__name__ == name]
    options = [option for one in classes[:1] for option in signature(one).parameters if option != "seed"]
    near = nearest(unknown, options)
    says = f"{name} has no option {unknown}{near}" if unknown else f"{name} has no options"
    if classes and options:
        says += f"; it has {', '.join(options)}"
    if classes and not near and section not in LISTS:
        says += of_another_class(section, f"{classes[0].__module__}.{classes[0].__qualname__}")
    return says


def _not_found(text: str) -> str | None:
    """Returns a message for a failed import, or None for another error."""
    absent = re.search(r"No module named '([\w.]+)'", text)
    if absent is None:
        return None
    module, _, name = absent[1].rpartition(".")
    if module in sys.modules:
        there = [key for key, value in vars(sys.modules[module]).items() if _is_of(module, value)]
        return f"{module} has no {name}{nearest(name, there)}"
    return (
        f"there is no module {absent[1]}, neither in this directory nor installed; "
        "docs/dependencies.md says which extra has a package"
    )


def _is_of(module: str, value: object) -> bool:
    """Returns True if the value is a class or a module that is defined in this module or package."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return isinstance(value, type | ModuleType) and name.startswith(module)


# --- this machine ---------------------------------------------------------------------------------


def check_machine(config: RunConfig) -> None:
    """Raises PlanError for missing packages, programs, GPUs, CPUs or addresses. A plan may lack them."""
    if config.plan:
        return
    if absent := missing(config):
        raise PlanError(absent[0])
    import torch

    if not executor_class(config).spans_nodes:
        found = torch.cuda.device_count()
        if config.world.gpus > found:
            why = fault_of_driver(torch.version.cuda, driver_cuda())
            raise PlanError(
                why or f"world.gpus={config.world.gpus}, but torch sees {found}; 0 runs on the CPU"
            )
        if without := next(lacking(config), None):
            raise PlanError(without)
        cpus = os.cpu_count() or 1
        processes = config.world.servers + config.world.trainer_ranks
        if processes > PROCESSES_PER_CPU * cpus:
            raise PlanError(
                f"world.servers + world.trainer_ranks = {processes} processes on {cpus} CPUs; the most here "
                f"is {PROCESSES_PER_CPU * cpus}; executor=ray runs them on several machines (docs/cluster.md)"
            )
        check_master_address(config.weights.master_address)


def check_master_address(address: str | None) -> None:
    """Raises PlanError for an address at which trainer rank 0, on this machine, cannot listen."""
    if address is None:
        return
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET  # as the rendezvous store listens
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError) as error:
        raise PlanError(
            f"weights.master_address={address} is no address of this machine ({first_line(error)}); leave it "
            "null, or set it to one"
        ) from error


def missing(config: RunConfig) -> list[str]:
    """Returns how to install the missing packages of trainer, engines, executor and observers."""
    engines = [config.inference, *config.inference.others.values(), *filter(None, [config.reference])]
    lacking = [instantiate(config.trainer).missing, *map(missing_engine, engines)]
    lacking.append(executor_class(config).missing())
    lacking += [observer.missing() for observer in build_observers(config)]
    return list(dict.fromkeys(filter(None, lacking)))
