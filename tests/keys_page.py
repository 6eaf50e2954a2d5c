"""The tables of docs/configure.md, from the schema and from conf/.

`python -m tests.keys_page` prints the page; --write puts the tables into it.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from pipelinerl.config import Component, ReferenceConfig, RunConfig
from pipelinerl.launcher.composing.choices import (
    EXPERIMENT_GROUPS,
    choices_of,
    files_of,
    groups,
    sentence_of,
    target_of,
)
from pipelinerl.launcher.composing.compose import compose_config, defaults_of
from pipelinerl.paths import ROOT

PAGE = ROOT / "docs" / "configure.md"
TABLES = re.compile(r"(?<=<!-- keys -->\n).*(?=<!-- end -->)", re.DOTALL)


def written() -> str:
    """Returns the page with tables of the code as it is."""
    tables = "\n".join([*_keys_tables(), *_choices_tables()])
    return TABLES.sub(lambda _: f"\n{tables}\n", PAGE.read_text())


def _keys_tables() -> Iterator[str]:
    demo = compose_config([])
    values = demo.model_dump(by_alias=True, mode="json")
    fields = RunConfig.model_fields
    sections = {name: kind for name in fields if (kind := _section(fields[name].annotation))}
    yield "## Keys of the run\n"
    plain = {name: values[name] for name in fields if name not in sections and not _chosen(name)}
    yield from _keys_table(_rows(RunConfig, plain))
    for name, kind in sections.items():
        yield f"## Keys of `{name}`\n"
        yield from _keys_table(_rows(kind, values[name], f"{name}."))
    for group in ("streams", "executor", "weights"):
        for choice in choices_of(group):
            yield from _options_table(group, choice, resolve_name(target_of(group, choice)).Options)
    yield "## Keys of `reference`\n"
    yield from _keys_table(_rows(ReferenceConfig, defaults_of(ReferenceConfig), "reference."))


def _options_table(group: str, choice: str, kind: type[BaseModel]) -> Iterator[str]:
    """Yields the keys that one choice of a group has."""
    yield f"## Keys of `{group}={choice}`\n"
    defaults = {key: field.get_default(call_default_factory=True) for key, field in kind.model_fields.items()}
    if defaults:
        yield from _keys_table(_rows(kind, defaults, f"{group}."))
    else:
        yield "None.\n"


def _section(annotation: Any) -> type[BaseModel] | None:
    """Returns the section's class, if the key is one."""
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section and annotation is not Component else None


def _chosen(name: str) -> bool:
    """Says whether files of `conf/` are the choices of the key."""
    return name in groups()


def _rows(kind: type[BaseModel], values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Yields each key of `values` with its value and its meaning."""
    for name, value in values.items():
        field = kind.model_fields["target" if name == "_target_" else name]
        section = _section(field.annotation)
        if section and isinstance(value, dict):
            yield from _rows(section, value, f"{prefix}{name}.")
        elif field.annotation is Component:
            target = value.pop("_target_")
            yield f"{prefix}{name}._target_", target, "The class. Its options follow."
            yield from (
                (f"{prefix}{name}.{option}", of, f"An option of `{target}`.") for option, of in value.items()
            )
        else:
            yield f"{prefix}{name}", value, (field.description or "") + _one_of(field.annotation)


def _one_of(annotation: Any) -> str:
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    return f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""


def _keys_table(rows: Iterator[tuple[str, Any, str]]) -> Iterator[str]:
    yield "| key | value | what it is |\n| --- | --- | --- |"
    for key, value, meaning in rows:
        yield f"| `{key}` | `{_cell(json.dumps(value))}` | {_cell(meaning)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _choices_tables() -> Iterator[str]:
    for group in sorted(groups()):
        added = "+" if group in EXPERIMENT_GROUPS else ""
        yield f"## Choices of `{added}{group}=`\n"
        yield "| choice | what it sets |\n| --- | --- |"
        for choice, file in sorted(files_of(group).items()):
            yield f"| [`{choice}`](../{file.relative_to(ROOT)}) | {_cell(_summary(file))} |"
        yield ""


def _summary(file: Path) -> str:
    """Returns the sentence of a recipe or an observer, or the class and the options of another choice."""
    text = file.read_text()
    if text.startswith("# @package _global_") or file.parent.name == "observers":
        return sentence_of(file.parent.name, file.stem)
    options = yaml.safe_load(text) or {}
    files = [_file_of(entry) for entry in options.pop("defaults", []) if entry not in ("schema", "_self_")]
    target = options.pop("_target_", None)
    settings = [f"{name}={_short(value)}" for name, value in options.items() if not name.startswith("_")]
    return ", ".join(f"`{part}`" for part in [*filter(None, [target]), *files, *settings])


def _file_of(entry: str | dict[str, str]) -> str:
    """Returns the file that a choice begins with, as `conf/` names it."""
    return entry if isinstance(entry, str) else "=".join(next(iter(entry.items())))


def _short(value: Any) -> str:
    """Returns the value, or `{...}` for a mapping in mappings."""
    nested = isinstance(value, dict) and any(isinstance(inner, dict) for inner in value.values())
    return "{...}" if nested else json.dumps(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/configure.md")
    if parser.parse_args().write:
        PAGE.write_text(written())
    else:
        print(written())
