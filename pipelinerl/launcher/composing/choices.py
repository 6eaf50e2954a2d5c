"""The groups of `conf/` and their choices, and the text of `launch.py --help`.

Choices are read from the `conf/` of the project, of the current directory and of the extensions.
"""

import ast
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from pipelinerl.config import Component, RunConfig
from pipelinerl.paths import ROOT, conf_directories

EXPERIMENT_GROUPS = ("exp", "scale")  # groups whose files set keys of every section
COLUMN = 36  # at which the descriptions begin
COMMANDS = """
extensions.viewer.records extensions.viewer.track pipelinerl.scale pipelinerl.export
extensions.viewer.trace extensions.viewer.parquet
extensions.simulator extensions.tools.difficulty extensions.tools.shortest extensions.tools.merge
extensions.tools.dequantise
extensions.volunteers extensions.demo extensions.tools.replay contracts.conformance contracts.schema
inference_adapters.transformers inference_adapters.vllm inference_adapters.sglang inference_adapters.scripted
"""  # in the order in which a user needs them


def chosen_by_default() -> dict[str, str | list[str] | None]:
    """Returns the demo's choice in each group; a list if a run may have several."""
    defaults = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["defaults"]
    return {group: choice for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()}


def groups() -> list[str]:
    return [*chosen_by_default(), *EXPERIMENT_GROUPS]


def choices_of(group: str) -> list[str]:
    return sorted(files_of(group))


def sentence_of(group: str, choice: str) -> str:
    """Returns a choice's description: the first line of the comment that begins its file, or ""."""
    for line in files_of(group)[choice].read_text(errors="replace").splitlines():
        if not line.startswith("#"):
            return ""
        if not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""


def options_in(group: str, choice: str) -> list[str]:
    """Returns the keys that a choice's file sets."""
    content = yaml.safe_load(files_of(group)[choice].read_text(errors="replace"))
    return [key for key in content if key != "defaults"] if isinstance(content, dict) else []


def target_of(group: str, choice: str) -> str | None:
    """Returns the class path (`_target_`) in a choice's file, if there is one."""
    content = yaml.safe_load(files_of(group)[choice].read_text(errors="replace"))
    return content.get("_target_") if isinstance(content, dict) else None


def files_of(group: str) -> dict[str, Path]:
    """Returns the file of each choice of a group."""
    folders = [conf / group for conf in reversed(conf_directories())]  # the first directory has priority
    return {path.stem: path for folder in folders for path in folder.glob("*.yaml")}


# --- the help -------------------------------------------------------------------------------------


def describe_options(config: RunConfig) -> Iterator[str]:
    """Yields lines that list choices, experiments, commands, and every key with its value in `config`."""
    choices = chosen_by_default()
    yield "Choices, each a folder of conf/ with one file a choice; the demo's choice is shown:"
    for group, chosen in choices.items():
        yield _line(f"{group}={'null' if chosen is None else chosen}", ", ".join(choices_of(group)))
    yield ""
    yield "Experiments, which set keys of every section:"
    for group in EXPERIMENT_GROUPS:
        for choice in choices_of(group):
            yield _line(f"+{group}={choice}", sentence_of(group, choice))
    yield ""
    yield "Other commands, each with --help:"
    for command, sentence in described_commands():
        yield _line(command, sentence)
    yield ""
    yield "Keys, with the demo's values. Other choices have other options: their files in conf/ list them."
    for key, value, sentence in _keys(config, choices):
        yield _line(f"{key}={json.dumps(value)}", sentence)


def _line(name: str, sentence: str) -> str:
    return f"  {name:<{COLUMN}}  {sentence}".rstrip()


def described_commands() -> Iterator[tuple[str, str]]:
    """Yields each command and the first line of its docstring. Imports none of them."""
    for module in COMMANDS.split():
        docstring = ast.get_docstring(ast.parse(source_of(module).read_text())) or ""
        yield f"python -m {module}", docstring.split("\n")[0]


def source_of(module: str) -> Path:
    """Returns the file that `python -m MODULE` runs."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _keys(values: BaseModel, skipped: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yields the key, value and description of each field, except for the top-level keys in `skipped`."""
    plain = values.model_dump(by_alias=True, mode="json")
    for name, field in type(values).model_fields.items():
        value = getattr(values, name)
        if isinstance(value, Component):
            target = plain[name].pop("_target_")
            yield f"{prefix}{name}._target_", target, "The class; its options follow."
            declared = type(value).model_fields
            for option, given in plain[name].items():
                text = declared[option].description if option in declared else f"An option of {target}."
                yield f"{prefix}{name}.{option}", given, text or ""
        elif isinstance(value, BaseModel):
            if field.default is None:  # a section that may be null
                yield prefix + name, plain[name], field.description or ""
            yield from _keys(value, (), f"{prefix}{name}.")
        elif name not in skipped:
            yield prefix + name, plain[name], field.description or ""
