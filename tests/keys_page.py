"""The lists of docs/configure.md, from the schema and from conf/.

`python -m tests.keys_page` prints the page; --write puts the lists into it.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from pipelinerl.config import Component, EngineConfig, ReferenceConfig, RunConfig
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
LISTS = re.compile(r"(?<=<!-- keys -->\n).*(?=<!-- end -->)", re.DOTALL)
SIMPLE = re.compile(r"[\w./-]+")
LONGEST = 60  # characters of a value
LONG = "..."  # in place of a longer one
WITH_KEYS = ("streams", "executor", "weights")  # groups whose choices have sections of their own


def written() -> str:
    """Returns the page with lists of the code as it is."""
    lists = "\n".join([*_keys_lists(), *_choices_lists()])
    return LISTS.sub(lambda _: f"\n{lists}\n", PAGE.read_text())


def _keys_lists() -> Iterator[str]:
    demo = compose_config([])
    values = demo.model_dump(by_alias=True, mode="json")
    fields = RunConfig.model_fields
    sections = {name: kind for name in fields if (kind := _section(fields[name].annotation))}
    yield "## Keys of the run\n"
    plain = {name: values[name] for name in fields if name not in sections and not _chosen(name)}
    yield from [*_keys(RunConfig, plain), ""]
    for name, kind in sections.items():
        yield f"## Keys of `{name}`\n"
        yield from [*_keys(kind, values[name], f"{name}."), ""]
    for group in WITH_KEYS:
        for choice in choices_of(group):
            kind = resolve_name(target_of(group, choice)).Options
            if kind.model_fields:
                yield f"## Keys of `{group}={choice}`\n"
                yield from [*_keys(kind, _defaults(kind), f"{group}."), ""]
    yield "## Keys of `reference`\n"
    own = {
        name: value
        for name, value in defaults_of(ReferenceConfig).items()
        if name not in EngineConfig.model_fields
    }
    yield from _keys(ReferenceConfig, own, "reference.")
    yield "* The others are those of an engine in `inference`.\n"


def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    return {key: field.get_default(call_default_factory=True) for key, field in kind.model_fields.items()}


def _section(annotation: Any) -> type[BaseModel] | None:
    """Returns the section's class, if the key is one."""
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section and annotation is not Component else None


def _chosen(name: str) -> bool:
    """Says whether files of `conf/` are the choices of the key."""
    return name in groups()


def _keys(kind: type[BaseModel], values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields a line for each key of `values`, with its value and its meaning."""
    for name, value in values.items():
        field = kind.model_fields["target" if name == "_target_" else name]
        section = _section(field.annotation)
        if section and isinstance(value, dict):
            yield from _keys(section, value, f"{prefix}{name}.")
        elif field.annotation is Component:
            yield _line(
                f"`{prefix}{name}._target_={value.pop('_target_')}`",
                f"the class; {_options(value, f'{prefix}{name}.')}.",
            )
        else:
            meaning = (field.description or "").removesuffix(".")
            yield _line(f"`{prefix}{name}={_short(value)}`", f"{meaning}{_one_of(field.annotation)}.")


def _line(name: str, meaning: str) -> str:
    """Returns an item of a list, in lines of the page's width."""
    text = f"* {name}: {meaning}" if meaning else f"* {name}"
    return textwrap.fill(text, 150, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _one_of(annotation: Any) -> str:
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    return f" ({', '.join(f'`{choice}`' for choice in choices)})" if choices else ""


def _choices_lists() -> Iterator[str]:
    yield "## Choices\n"
    for group in sorted(groups()):
        added = "+" if group in EXPERIMENT_GROUPS else ""
        yield f"### `{added}{group}=`\n"
        for choice, file in sorted(files_of(group).items()):
            yield _line(f"[`{choice}`](../{file.relative_to(ROOT)})", _summary(file))
        yield ""


def _summary(file: Path) -> str:
    """Returns what a recipe or an observer is, or the options of another choice."""
    text = file.read_text()
    if text.startswith("# @package _global_") or file.parent.name == "observers":
        sentence = sentence_of(file.parent.name, file.stem)
        return sentence.partition(": ")[0] if file.parent.name in EXPERIMENT_GROUPS else sentence
    if file.parent.name in WITH_KEYS:
        return ""
    options = yaml.safe_load(text) or {}
    entries = [entry for entry in options.pop("defaults", []) if entry not in ("schema", "_self_")]
    files = [f"`{_file_of(entry)}`" for entry in entries if not str(entry).endswith("@_here_")]
    return ", ".join([*files, *filter(None, [_options(options)])])


def _file_of(entry: str | dict[str, str]) -> str:
    """Returns the file that a choice begins with, as `conf/` names it."""
    return entry if isinstance(entry, str) else "=".join(next(iter(entry.items())))


def _options(options: dict[str, Any], prefix: str = "") -> str:
    """Returns options and their values. Classes, long values and the run's seed are left to the file."""
    shown = {name: value for name, value in options.items() if name[0] != "_" and name != "seed"}
    values = {name: _short(value) for name, value in shown.items() if not _is_class(value)}
    return ", ".join(f"`{prefix}{name}={value}`" for name, value in values.items() if value != LONG)


def _is_class(value: Any) -> bool:
    """Says whether the value is a component, or what a component has besides its options."""
    return isinstance(value, dict) and any(name in value for name in ("_target_", "_partial_"))


def _short(value: Any) -> str:
    """Returns the value as one writes it in YAML, or LONG."""
    if isinstance(value, str) and SIMPLE.fullmatch(value):
        return value
    written = json.dumps(value)
    return written if len(written) <= LONGEST else LONG


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the lists into docs/configure.md")
    if parser.parse_args().write:
        PAGE.write_text(written())
    else:
        print(written())
