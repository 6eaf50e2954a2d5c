"""Composes the configuration with Hydra: the schema's defaults, `conf/` and the command line's overrides.

Hydra refuses a key that no file has. So the defaults of `pipelinerl/config.py` are registered as the lowest
layer, and the files contain only deviations from them. Overrides of a resumed run change its configuration.
A file may add numbers of the run: `${sum:${sampling.max_prompt_tokens},${sampling.max_tokens}}`.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from contracts.support.messages import one_line
from contracts.support.moved import new_path
from pipelinerl.config import (
    WORDS,
    Component,
    EngineConfig,
    ReferenceConfig,
    RunConfig,
    WeightsConfig,
    as_written,
    with_moved_keys,
)
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.choices import EXPERIMENT_GROUPS, chosen_by_default
from pipelinerl.launcher.composing.explain import explain, file_given, parse, unknown_keys
from pipelinerl.paths import conf_directories, conf_directory

FIXED = ("seed", "group_size", "model", "domain", "sampler", "streams")  # keys that a resume cannot change
FIXED_OPTIONS = ("trainer.lora", "trainer.inner.lora")  # because a checkpoint has the trained parameters


def _sum(*numbers: object) -> int | None:
    """Returns None if one is no whole number. The schema then names that key."""
    return sum(numbers) if all(isinstance(number, int) for number in numbers) else None


OmegaConf.register_new_resolver("sum", _sum, replace=True)


def compose_config(overrides: list[str]) -> RunConfig:
    """Returns the configuration. Raises PlanError, whose message names the wrong key."""
    try:
        given = parse(overrides)
        is_resumed = "resume" in given and given["resume"].value() is not False
        config = RunConfig.model_validate(_of_stopped_run(given) if is_resumed else _composed(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise PlanError(explain(error, overrides)) from error
    except ValidationError as error:
        raise PlanError(unknown_keys(error, overrides)) from error
    except (OSError, ValueError, yaml.YAMLError) as error:  # such as a file that is no YAML
        raise PlanError(f"the configuration cannot be composed: {one_line(error)}") from error
    if "schedule" in given and config.schedule in WORDS and config.schedule != given["schedule"].value():
        raise PlanError(
            f"{given['schedule'].input_line}: a file of conf/ sets schedule={config.schedule}; have it "
            f"choose it in its defaults instead, by `- override /schedule: {config.schedule}`"
        )
    if config.schedule == "conventional" and "max_lag" in given and config.max_lag != 0:
        raise PlanError(
            f"{given['max_lag'].input_line}: schedule=conventional trains on the newest weights alone, "
            "max_lag=0; leave max_lag out, or set schedule=async or schedule=pipeline"
        )
    return config


def _composed(overrides: list[str]) -> dict:
    """Composes the files of all `conf/` directories."""
    paths = [str(conf).replace("\\", "\\\\").replace("'", "\\'") for conf in conf_directories()[1:]]
    others = [f"'file://{path}'" for path in paths]
    overrides = [*overrides, f"hydra.searchpath=[{','.join(others)}]"]
    _check_own_choices()
    store = ConfigStore.instance()
    store.store("schema", defaults_of(RunConfig))  # under the names in the `defaults` lists of `conf/`
    store.store("schema", defaults_of(EngineConfig), group="inference")
    store.store("schema", defaults_of(ReferenceConfig), group="reference")
    store.store("schema", defaults_of(WeightsConfig), group="weights")
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        composed = OmegaConf.to_container(
            compose("config", overrides=overrides), resolve=True, throw_on_missing=True
        )
    for group in EXPERIMENT_GROUPS:
        if group in composed:
            file = file_given(group, overrides)
            raise PlanError(f"{file}: its first line must be: # @package _global_")
    _check_paths(composed)
    return composed


def _check_own_choices() -> None:
    """Raises PlanError for a file in the `conf/` of the current directory that Hydra would never read."""
    own = Path.cwd() / "conf"
    for conf in conf_directories():
        for shipped in conf.glob("*/*.yaml") if conf != own else ():
            file = own / shipped.relative_to(conf)
            if file.is_file() and file.read_bytes() != shipped.read_bytes():
                raise PlanError(f"{file}: the project has a choice of that name; give the file another name")


def defaults_of(schema: type[BaseModel]) -> dict[str, Any]:
    """Returns the defaults of a schema and of its sections, by key."""
    defaults = {}
    for name, field in schema.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if not issubclass(kind, Component):
                defaults[name] = defaults_of(kind)
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
            defaults[field.alias or name] = list(default) if isinstance(default, tuple) else default
    return defaults


def _check_paths(value: object, key: str = "") -> None:
    """Raises PlanError for the path of a class that has moved."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return
    path = value.get("_target_")
    if isinstance(path, str) and (new := new_path(path)):
        raise PlanError(f"{key}_target_={path} is {new} now")
    for name, inner in value.items():
        _check_paths(inner, f"{key}{name}.")


def _of_stopped_run(given: dict[str, Override]) -> dict:
    """Returns the configuration of the stopped run with the given overrides."""
    if not isinstance(given["resume"].value(), int):
        raise PlanError(
            f"{given['resume'].input_line}: resume=true resumes from the newest checkpoint, and a number "
            "from that version's; resume=false starts a new run"
        )
    run_dir = given["run_dir"].value() if "run_dir" in given else None
    if run_dir is None:
        raise PlanError("resume needs run_dir: the directory of the run to resume")
    file = Path(run_dir) / "config.yaml"
    if not file.is_file():
        raise PlanError(f"run_dir={run_dir} holds no run to resume (no config.yaml there)")
    try:
        saved = yaml.safe_load(file.read_text(errors="replace"))
    except yaml.YAMLError:
        saved = None
    if not isinstance(saved, dict) or not saved.keys() >= {*FIXED}:
        raise PlanError(f"{file} is not the complete configuration of a run")
    run = OmegaConf.create(as_written(with_moved_keys(saved)))
    fixed = (*FIXED, *FIXED_OPTIONS)
    before = {key: deepcopy(OmegaConf.select(run, key)) for key in fixed}
    for key, override in given.items():
        if override.is_delete():
            raise PlanError(f"{override.input_line}: nothing can be taken out when a run is resumed")
        if key in EXPERIMENT_GROUPS:
            raise PlanError(f"{override.input_line}: a resumed run keeps its configuration; leave it out")
        chosen = key in chosen_by_default() and not isinstance(override.value(), dict)
        value = _composed([override.input_line.lstrip("+")])[key] if chosen else override.value()
        of_backend = key in ("executor", "streams") and chosen
        if of_backend and value["_target_"] == OmegaConf.select(run, f"{key}._target_"):
            continue  # it keeps its options
        if key == "model":  # null options keep the values that the launcher resolved
            known = {name: option for name, option in value.items() if name in run[key]}
            value = {name: run[key][name] if option is None else option for name, option in known.items()}
        OmegaConf.update(run, key, value, merge=False, force_add=True)
    for key, value in before.items():
        if OmegaConf.select(run, key) != value:
            raise PlanError(f"{key} cannot change when a run is resumed; it was {value}")
    changed = OmegaConf.to_container(run, resolve=True)
    _check_paths(changed)
    return changed
