"""What `launch.py --help` lists: choices, experiments, commands, and every key with the demo's value."""

import ast
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipelinerl.config import Component
from pipelinerl.launcher.composing.choices import PARTS_OF_ALL, choices_of, chosen_by_default, sentence_of
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.paths import ROOT

COLUMN = 36  # where the sentences begin
COMMANDS = (  # what one types while working with runs, in the order in which one comes to need it
    "extensions.viewer.records",
    "extensions.viewer.track",
    "pipelinerl.scale",
    "pipelinerl.export",
    "extensions.viewer.trace",
    "extensions.viewer.parquet",
    "extensions.simulator",
    "extensions.tools.difficulty",
    "extensions.tools.shortest",
    "extensions.tools.merge",
    "extensions.demo",
    "extensions.tools.replay",
    "contracts.conformance",
    "contracts.schema",
    "inference_adapters.transformers",
    "inference_adapters.vllm",
    "inference_adapters.sglang",
    "inference_adapters.scripted",
)


def describe_options() -> Iterator[str]:
    """Yields the lines."""
    choices = chosen_by_default()
    yield "Choices, each a folder of conf/ with one file a choice; the demo's choice is shown:"
    for group, chosen in choices.items():
        yield _line(f"{group}={'null' if chosen is None else chosen}", ", ".join(choices_of(group)))
    yield ""
    yield "Experiments, which set keys of every section:"
    for group in PARTS_OF_ALL:
        for choice in choices_of(group):
            yield _line(f"+{group}={choice}", sentence_of(group, choice))
    yield ""
    yield "Other commands, each with --help:"
    for command, sentence in described_commands():
        yield _line(command, sentence)
    yield ""
    yield "Keys, with the demo's values. Other choices have other options: their files in conf/ list them."
    for key, value, sentence in _keys(compose_config([]), choices):
        yield _line(f"{key}={json.dumps(value)}", sentence)


def _line(name: str, sentence: str) -> str:
    return f"  {name:<{COLUMN}}  {sentence}".rstrip()


def described_commands() -> Iterator[tuple[str, str]]:
    """Yields each command beside `launch.py` and the sentence of its module, which is not imported."""
    for module in COMMANDS:
        docstring = ast.get_docstring(ast.parse(source_of(module).read_text())) or ""
        yield f"python -m {module}", docstring.split("\n")[0]


def source_of(module: str) -> Path:
    """Returns the file that `python -m MODULE` runs."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _keys(values: BaseModel, skipped: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yields each key with its value and its sentence, but for the top-level keys in `skipped`."""
    plain = values.model_dump(by_alias=True, mode="json")
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, Component):
            target = plain[name].pop("_target_")
            yield f"{prefix}{name}._target_", target, "The class; its options follow."
            declared = type(value).model_fields
            for option, given in plain[name].items():
                said = declared[option].description if option in declared else f"An option of {target}."
                yield f"{prefix}{name}.{option}", given, said or ""
        elif isinstance(value, BaseModel):
            if field.default is None:  # a section that null leaves out
                yield prefix + name, plain[name], field.description or ""
            yield from _keys(value, (), f"{prefix}{name}.")
        elif name not in skipped:
            yield prefix + name, plain[name], field.description or ""
