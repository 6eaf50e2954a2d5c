"""Composing the configuration: `conf/` and the command line's overrides, by Hydra.

A resumed run keeps the configuration that it was started with; overrides change what they name in it.
"""

import difflib
import re
from copy import deepcopy
from pathlib import Path
from typing import get_args, get_origin

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from contracts.support.messages import first_line, one_line
from pipelinerl.config import NODES, RESTARTS, Component, RunConfig, with_moved_keys
from pipelinerl.errors import PlanError
from pipelinerl.launcher.defaults import register_defaults
from pipelinerl.paths import ROOT, conf_directory

PARTS_OF_ALL = ("exp", "scale")  # groups whose files set keys of every section
FIXED = ("seed", "group_size", "model", "domain", "sampler", "streams")  # while a run goes on


def compose_config(overrides: list[str]) -> RunConfig:
    """Raises PlanError or pydantic's ValidationError; both say which key and why."""
    try:
        given = {o.key_or_group: o for o in OverridesParser.create().parse_overrides(overrides)}
        if "resume" in given and given["resume"].value() is not False:
            return RunConfig.model_validate(_of_stopped_run(given))
        return RunConfig.model_validate(_composed(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise PlanError(_explain(error, overrides)) from error
    except ValidationError:
        raise
    except (OSError, ValueError, yaml.YAMLError) as error:  # a choice that is no name, a file that is no YAML
        raise PlanError(f"the configuration cannot be composed: {one_line(error)}") from error


def _composed(overrides: list[str]) -> dict:
    """A `conf/` where the command was given adds to the project's: `conf/objective/mine.yaml`."""
    own = Path.cwd() / "conf"
    if own.is_dir() and own != ROOT / "conf":
        path = str(own).replace("\\", "\\\\").replace("'", "\\'")
        overrides = [*overrides, f"hydra.searchpath=['file://{path}']"]
    register_defaults()
    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
    for group in PARTS_OF_ALL:
        if group in composed:
            raise PlanError(f"{group}: the first line of its file must be: # @package _global_")
    return composed


def _of_stopped_run(given: dict[str, Override]) -> dict:
    """The run's own configuration, with what is given in its place."""
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
    run = OmegaConf.create(with_moved_keys(saved))
    before = {key: deepcopy(run[key]) for key in FIXED}
    for key, override in given.items():
        if override.is_delete():
            raise PlanError(f"{override.input_line}: nothing can be taken out when a run is resumed")
        if key in PARTS_OF_ALL:
            raise PlanError(f"{override.input_line}: a resumed run keeps its configuration; leave it out")
        chosen = (ROOT / "conf" / key).is_dir()
        value = _composed([override.input_line.lstrip("+")])[key] if chosen else override.value()
        if key == "executor" and chosen and _is_that_of(run, override):
            continue  # it keeps the settings that it had
        if key == "streams":  # the launcher has filled in what a choice leaves open
            value = {name: run[key].get(name) if option is None else option for name, option in value.items()}
        OmegaConf.update(run, key, value, merge=False, force_add=True)
    for key, value in before.items():
        if run[key] != value:
            raise PlanError(f"{key} cannot change when a run is resumed; it was {value}")
    return OmegaConf.to_container(run, resolve=True)


def _is_that_of(run: DictConfig, override: Override) -> bool:
    """Whether the project's own choice of an executor is the one that the run had."""
    return (run.get("executor") or {}).get("backend") == override.value()


def _explain(error: Exception, overrides: list[str]) -> str:
    text = first_line(error)
    if missing := re.search(r"Could not find '(\w+)/(\w+)'", text):
        group, choice = missing.groups()
        return f"{group}={choice} is not one of {', '.join(choices_of(group))} (conf/{group}/)"
    for override in overrides:
        if override.startswith("--") or ("=" not in override and not override.startswith("~")):
            return f"{override}: settings are written KEY=VALUE, like max_steps=20"
        key = override.split("=")[0].lstrip("+~")
        if key in ("world.nodes", "world.node_timeout_s"):
            return f"{override}: {NODES}"
        if key == "world.server_restarts":
            return f"{override}: {RESTARTS}"
        if f"'{key}'" in text or f"'{key.split('.')[-1]}'" in text:
            section = key.split(".")[0]
            if key in PARTS_OF_ALL:
                return f"{override}: it is added with a plus: +{override}"
            if section != key and _is_component(section):
                return f"{override}: {section} has no such option in its file; +{key}=... adds one"
            if _takes_any_name(key):
                return f"{override}: what is not in the file yet is added with a plus: +{override}"
            near = difflib.get_close_matches(key, _known_keys(RunConfig), n=1)
            hint = f"; did you mean {near[0]}?" if near else "; python launch.py --help lists the keys"
            if near == [key]:
                hint = f"; it belongs to another choice of {key.split('.')[0]}"
            return f"unknown configuration key or choice: {override}{hint}"
    return text


def choices_of(group: str) -> list[str]:
    """Returns the files of a group, in the project's `conf/` and in that of the current directory."""
    folders = {ROOT / "conf" / group, Path.cwd() / "conf" / group}
    return sorted({path.stem for folder in folders for path in folder.glob("*.yaml")})


def _is_component(section: str) -> bool:
    field = RunConfig.model_fields.get(section)
    return field is not None and field.annotation is Component


def _takes_any_name(key: str) -> bool:
    """Whether it is, or lies in, a mapping whose names are the user's."""
    kind = RunConfig
    for name in key.split("."):
        field = getattr(kind, "model_fields", {}).get(name)
        if field is None or get_origin(field.annotation) is dict:
            return field is not None
        kind = field.annotation
    return False


def _known_keys(model, prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        for kind in (field.annotation, *get_args(field.annotation)):
            if hasattr(kind, "model_fields"):
                keys += _known_keys(kind, f"{prefix}{name}.")
    return keys
