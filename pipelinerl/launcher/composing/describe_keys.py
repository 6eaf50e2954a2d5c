"""Every key of the configuration with its value in the demo and its sentence, for `launch.py --help`."""

import json
from collections.abc import Collection, Iterator
from typing import Any

from pydantic import BaseModel

from pipelinerl.config import Component
from pipelinerl.launcher.composing.compose import compose_config


def described_keys(choices: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields each key with the demo's value, and its sentence. The groups of choices are not among them."""
    for key, value, sentence in _keys(compose_config([]), choices):
        yield f"{key}={json.dumps(value)}", sentence


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
