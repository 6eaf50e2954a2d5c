"""Every key of the configuration with its value in the demo and its sentence, for `launch.py --help`."""

import json
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from pipelinerl.config import Component, RunConfig
from pipelinerl.launcher.compose import choices_of, compose_config
from pipelinerl.paths import ROOT

COLUMN = 36  # where the sentences begin


def describe_keys() -> Iterator[str]:
    """Yields a line for each choice, then one for each key, with the demo's value and a sentence."""
    yield "Choices, each with its files in conf/ (an option is CHOICE.OPTION=value):"
    for group, chosen in _chosen().items():
        yield _line(f"{group}={chosen or 'null'}", ", ".join(choices_of(group)))
    yield ""
    yield "Keys:"
    for key, value, sentence in _keys(RunConfig, compose_config([])):
        yield _line(f"{key}={json.dumps(value)}", sentence)


def _line(setting: str, sentence: str) -> str:
    return f"  {setting:<{COLUMN}}  {sentence}".rstrip()


def _chosen() -> dict[str, str | None]:
    """Returns the choice that the demo makes in each group of `conf/`."""
    defaults = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["defaults"]
    return {group: choice for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()}


def _keys(schema: type[BaseModel], values: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    for name, field in schema.model_fields.items():
        value = getattr(values, name)
        plain = values.model_dump(by_alias=True, mode="json")[name]
        if isinstance(value, Component):
            if name not in _chosen():
                yield from ((f"{name}.{option}", plain[option], "") for option in plain)
        elif isinstance(value, BaseModel):
            yield from _keys(type(value), value, f"{prefix}{name}.")
        elif prefix or name not in _chosen():
            yield prefix + name, plain, field.description or ""
