"""Composing the configuration: `conf/` and the command line's overrides, by Hydra."""

import difflib
import re

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipelinerl.config import RunConfig
from pipelinerl.jobs import ROOT, PlanError


def compose_config(overrides: list[str]) -> RunConfig:
    """Raises PlanError or pydantic's ValidationError; both say which key and why."""
    try:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            composed = compose("config", overrides=overrides)
        return RunConfig.model_validate(OmegaConf.to_container(composed, resolve=True))
    except (HydraException, OmegaConfBaseException) as error:
        raise PlanError(_explain(error, overrides)) from error


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
