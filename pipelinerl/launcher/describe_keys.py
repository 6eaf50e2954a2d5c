"""Every key of the configuration with its value in the demo and its sentence, for `launch.py --help`."""

import json
from collections.abc import Collection, Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from pipelinerl.config import Component
from pipelinerl.launcher.compose import PARTS_OF_ALL, choices_of, compose_config
from pipelinerl.paths import ROOT

COLUMN = 36  # where the sentences begin


def describe_keys() -> Iterator[str]:
    """Yields a line for each choice, then one for each key, with the demo's value and a sentence."""
    yield "Choices, each a folder of conf/ with one file a choice:"
    choices = _chosen()
    for group, chosen in choices.items():
        yield _line(f"{group}={chosen or 'null'}", ", ".join(choices_of(group)))
    for group in PARTS_OF_ALL:
        yield _line(f"+{group}=...", ", ".join(choices_of(group)))
    yield ""
    yield "Keys, with the demo's values. Other choices have other options: their files in conf/ list them."
    for key, value, sentence in _keys(compose_config([]), choices):
        yield _line(f"{key}={json.dumps(value)}", sentence)


def _line(setting: str, sentence: str) -> str:
    return f"  {setting:<{COLUMN}}  {sentence}".rstrip()


def _chosen() -> dict[str, str | None]:
    """Returns the choice that the demo makes in each group of `conf/`."""
    defaults = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["defaults"]
    return {group: choice for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()}


def _keys(values: BaseModel, skipped: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yields each key with its value and its sentence, but for the top-level keys in `skipped`."""
    plain = values.model_dump(by_alias=True, mode="json")
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, Component):
            yield from _options(name, plain[name])
        elif isinstance(value, BaseModel):
            if field.default is None:  # a section that null leaves out
                yield prefix + name, plain[name], field.description or ""
            yield from _keys(value, (), f"{prefix}{name}.")
        elif name not in skipped:
            yield prefix + name, plain[name], field.description or ""


def _options(name: str, component: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    target = component.pop("_target_")
    yield f"{name}._target_", target, "The class; its options follow."
    for option, value in component.items():
        yield f"{name}.{option}", value, f"An option of {target}."
