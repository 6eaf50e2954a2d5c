"""Composing the configuration: `conf/` and the command line's overrides, by Hydra.

A resumed run keeps the configuration that it was started with; overrides change what they name in it.
"""

import difflib
import re
from copy import deepcopy
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.config import RunConfig
from pipelinerl.jobs import ROOT, PlanError

FIXED = ("seed", "group_size", "model", "domain", "sampler", "streams")  # while a run goes on


def compose_config(overrides: list[str]) -> RunConfig:
    """Raises PlanError or pydantic's ValidationError; both say which key and why."""
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            composed = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise PlanError(_explain(error, overrides)) from error
    if composed["resume"] is False:
        return RunConfig.model_validate(composed)
    return RunConfig.model_validate(_of_stopped_run(composed, overrides))


def _of_stopped_run(composed: dict, overrides: list[str]) -> dict:
    """The run's own configuration, with what the overrides set in `composed`."""
    if composed["run_dir"] is None:
        raise PlanError("resume needs run_dir: the directory of the run that is to go on")
    file = Path(composed["run_dir"]) / "config.yaml"
    if not file.is_file():
        raise PlanError(f"run_dir={composed['run_dir']} holds no run to resume (no config.yaml there)")
    run = yaml.safe_load(file.read_text())
    before = deepcopy({key: run[key] for key in FIXED})
    for override in OverridesParser.create().parse_overrides(overrides):
        *parents, last = override.key_or_group.split(".")
        target, source = run, composed
        try:
            for parent in parents:
                target, source = target[parent], source[parent]
            if override.is_delete():
                del target[last]
            else:
                target[last] = source[last]
        except (KeyError, TypeError):
            raise PlanError(f"{override.input_line} cannot be set when a run is resumed") from None
    for key, value in before.items():
        if run[key] != value:
            raise PlanError(f"{key} cannot change when a run is resumed; it was {value}")
    return run


def _explain(error: Exception, overrides: list[str]) -> str:
    text = str(error).splitlines()[0]
    if missing := re.search(r"Could not find '(\w+)/(\w+)'", text):
        group, choice = missing.groups()
        choices = sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))
        return f"{group}={choice} is not one of {', '.join(choices)} (conf/{group}/)"
    for override in overrides:
        key = override.split("=")[0].lstrip("+~")
        if f"'{key}'" in text or f"'{key.split('.')[-1]}'" in text:
            near = difflib.get_close_matches(key, _known_keys(RunConfig), n=1)
            hint = f"; did you mean {near[0]}?" if near else "; conf/config.yaml lists the keys"
            return f"unknown configuration key or choice: {override}{hint}"
    return text


def _known_keys(model, prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if hasattr(field.annotation, "model_fields"):
            keys += _known_keys(field.annotation, f"{prefix}{name}.")
    return keys
