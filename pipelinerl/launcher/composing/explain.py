"""Parses the command line, and explains errors in it in one line: the wrong argument, and what to write."""

import difflib
import re
from collections.abc import Iterable, Sequence
from inspect import signature
from pkgutil import resolve_name
from typing import get_args, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from pydantic import BaseModel, ValidationError

from contracts.support.messages import first_line, nearest, problem_line
from pipelinerl.config import NODES, RESTARTS, Component, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.choices import (
    EXPERIMENT_GROUPS,
    choices_of,
    chosen_by_default,
    groups,
    options_in,
    target_of,
)

SEVERAL = "or several, like observers=[viewer,wandb]"
MOVED = {
    "executor.backend": "set executor=local or executor=ray",
    "model.demo": "write model=sums, model=thinking, model=guessing or model=word_problems",
    "model.hub": "write model.path=ORG/NAME",
    "streams.backend": "write streams=files or streams=redis",
    "streams.run": "the launcher names a new run; leave it out",
    "tensorboard": f"set observers=tensorboard, {SEVERAL}",
    "trackers": f"set observers=wandb, trackio or tensorboard, {SEVERAL}",
    "view": f"set observers=viewer, {SEVERAL}",
    "weights.transport": "write weights=group, weights=shared or weights=relay",
    "world.nodes": NODES,
    "world.node_timeout_s": NODES,
    "world.server_restarts": RESTARTS,
}


def parse(arguments: list[str]) -> dict[str, Override]:
    """Returns the overrides of a command line by their keys. Raises PlanError for an unreadable argument."""
    parser = OverridesParser.create()
    settings = {}
    for argument in arguments:
        if argument.startswith("--") or ("=" not in argument and not argument.startswith("~")):
            raise PlanError(f"{argument}: settings are written KEY=VALUE, like max_steps=20")
        if not argument.isascii() and argument != argument.encode(errors="ignore").decode():
            raise PlanError(
                f"{argument!r}: this terminal's encoding has no such characters; set PYTHONUTF8=1, or "
                "LC_ALL=C.UTF-8"
            )
        try:
            (setting,) = parser.parse_overrides([argument])
        except OverrideParseException as error:
            raise PlanError(_unreadable(argument)) from error
        _check_key(argument, setting.key_or_group.split(".")[0], setting.key_or_group)
        _check_value(argument, setting)
        if setting.is_sweep_override():
            raise PlanError(
                f"{argument!r}: a run has one value of each key; a list is written in brackets, and text "
                f"with a comma in quotes: {_quoted(argument)}"
            )
        settings[setting.key_or_group] = setting
    return settings


def _check_key(argument: str, section: str, key: str) -> None:
    if not key:
        raise PlanError(f"{argument}: the name of the key is missing before =")
    if section == "hydra":
        raise PlanError(f"{argument}: Hydra only composes the configuration, and its own settings do nothing")
    if section in EXPERIMENT_GROUPS and section != key:
        raise PlanError(f"{argument}: what +{section}=NAME sets is set by its own key, without {section}")
    if key in MOVED:
        raise PlanError(f"{argument}: {MOVED[key]}")


def _check_value(argument: str, setting: Override) -> None:
    """Raises PlanError for a number in place of a choice, and for an index or key of a list."""
    section, _, rest = setting.key_or_group.partition(".")
    field = RunConfig.model_fields.get(section)
    is_list = field is not None and get_origin(field.annotation) is list
    has_inner_key = rest and not rest[0].isdigit()
    if is_list and (has_inner_key or isinstance(setting.value(), dict)):
        raise PlanError(f"{argument}: {section} is a list, which is written whole, like {section}='[...]'")
    is_choice = not rest and section in groups() and not setting.is_delete()
    if is_choice and isinstance(setting.value(), int | float | None):
        none = f", or without {section} there is none" if field is not None and field.default is None else ""
        raise PlanError(f"{argument}: {section} is one of {', '.join(choices_of(section))}{none}")


def _quoted(argument: str) -> str:
    """Returns the argument for a shell, with the value in Hydra's quotes."""
    key, _, value = argument.partition("=")
    plain = value.removeprefix("'").removeprefix('"')
    # In Hydra's quotes, a backslash is literal unless a quote follows.
    escaped = re.sub(r"\\+(?='|$)", lambda found: 2 * found[0], plain).replace("'", "\\'")
    return f"{key}=\"'" + re.sub(r'([$`"\\])', r"\\\1", escaped) + "'\""


def _unreadable(argument: str) -> str:
    key, _, value = argument.partition("=")
    if not re.fullmatch(r"[\w./+~@-]+", key, re.ASCII):
        return f"{argument!r}: {key!r} is not the name of a key; settings are written KEY=VALUE"
    if value[:1] in "[{":
        return (
            f"{argument!r}: the list or mapping is not complete; write key='[a, b]' or key='{{a: 1, b: 2}}'"
        )
    typed = _quoted(argument)
    return f"{argument!r}: a value with such characters is written in quotes inside the shell's: {typed}"


def explain(error: Exception, arguments: Sequence[str]) -> str:
    """Returns a message for an error of Hydra or OmegaConf."""
    text = first_line(error)
    if missing := re.search(r"Could not (?:find|load) '(\w+)/([^']+)'", text):
        return _no_choice(*missing.groups())
    if twice := re.search(r"Multiple values for (\w+)", text):
        if twice[1] in EXPERIMENT_GROUPS:
            return f"+{twice[1]}=NAME is given more than once, and a run has one"
        if not any(argument.startswith(f"+{twice[1]}=") for argument in arguments):
            override = f"write `override /{twice[1]}: NAME` in its defaults"
            return f"{_files_given(arguments)}: {override}, because {twice[1]} has a choice already"
        return f"{twice[1]} has a choice already: write {twice[1]}=NAME, without the plus"
    if unmatched := re.search(r"In '((?:exp|scale)/[^']+)': Could not override '([^'@]+)(@\w+\.)?", text):
        return _no_override(*unmatched.groups())
    for argument in arguments:
        key = argument.split("=")[0].lstrip("+~")
        if f"'{key}'" in text or f"'{key.split('.')[-1]}'" in text:
            return _no_key(argument, key, arguments)
    return f"the configuration cannot be composed: {text}"


def _no_override(file: str, group: str, package: str | None) -> str:
    """Returns why the `override` in a file fails. `package`: of the file's keys, if there is one."""
    if package:
        return f"conf/{file}.yaml: its first line must be: # @package _global_"
    name = group.rpartition("/")[2]
    if name != group and name in groups():
        return f"conf/{file}.yaml: write `override /{name}: NAME` in its defaults, with a slash"
    return f"conf/{file}.yaml: it overrides {group}, and there is no such choice{nearest(group, groups())}"


def file_given(group: str, arguments: Iterable[str]) -> str | None:
    """Returns the file of +exp=NAME or +scale=NAME, or None if the group is not given."""
    names = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"+{group}=")]
    return f"conf/{group}/{names[0]}.yaml" if names else None


def _files_given(arguments: Sequence[str]) -> str:
    files = (file_given(group, arguments) for group in EXPERIMENT_GROUPS)
    return " or ".join(filter(None, files))


def unknown_keys(error: ValidationError, arguments: Sequence[str]) -> str:
    """Returns the validation errors in one line, with the nearest known key for an unknown one."""
    lines = []
    files = _files_given(arguments)
    for problem in error.errors():
        key = ".".join(map(str, problem["loc"]))
        typed = any(argument.lstrip("+~").startswith(key) for argument in arguments)
        unknown = problem["type"] == "extra_forbidden"
        where = f" in {files}" if unknown and files and not typed else ""
        hint = f"; {MOVED[key]}" if key in MOVED else nearest(key, _known_keys(RunConfig))
        lines.append(f"{problem_line(problem)}{where}{hint if unknown else ''}")
    return "; ".join(lines)


def _no_choice(group: str, choice: str) -> str:
    choices = choices_of(group)
    if not choices:
        return f"{group}={choice}: there is no group {group}{nearest(group, groups())}"
    near = nearest(choice, choices)
    if group == "model":
        near = near or f"; a Hugging Face model is set by model.path={choice}"
    return f"{group}={choice} is not one of {', '.join(choices)} (conf/{group}/){near}"


def _options_of(section: str, arguments: Sequence[str]) -> list[str]:
    given = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{section}=")]
    choice = (given or [chosen_by_default().get(section)])[-1]
    target = target_of(section, choice) if choice in choices_of(section) else None
    if target is None:
        return []
    named = resolve_name(target)
    return list(named.Options.model_fields if hasattr(named, "Options") else signature(named).parameters)


def _no_key(argument: str, key: str, arguments: Sequence[str]) -> str:
    section, _, option = key.partition(".")
    if key in EXPERIMENT_GROUPS:
        return f"{argument}: it is added with a plus: +{argument}"
    if others := [choice for choice in choices_of(section) if option in options_in(section, choice)]:
        return f"{argument}: {key} is an option of {' or '.join(f'{section}={other}' for other in others)}"
    field = RunConfig.model_fields.get(section)
    if section != key and field is not None and field.annotation is Component:
        near = nearest(key.removeprefix(f"{section}."), _options_of(section, arguments))
        hint = near.removeprefix("; ") or f"+{key}=... adds one"
        return f"{argument}: {section} has no such option in its file; {hint}"
    if _takes_any_name(key):
        return f"{argument}: what is not in the file yet is added with a plus: +{argument}"
    options = [f"{section}.{name}" for name in _options_of(section, arguments)] if option else []
    near = difflib.get_close_matches(key, [*_known_keys(RunConfig), *options, *EXPERIMENT_GROUPS], n=1)
    hint = f"; did you mean {near[0]}?" if near else "; python launch.py --help lists the keys"
    if near == [key] and argument.startswith("+"):
        return f"{argument}: {key} is there already; write it without the plus"
    if near == [key]:
        hint = f"; it belongs to another choice of {key.split('.')[0]}"
    return f"unknown configuration key or choice: {argument}{hint}"


def _takes_any_name(key: str) -> bool:
    """Returns True if the key is, or is inside, a mapping with arbitrary names."""
    kind = RunConfig
    for name in key.split("."):
        field = getattr(kind, "model_fields", {}).get(name)
        if field is None or get_origin(field.annotation) is dict:
            return field is not None
        kind = field.annotation
    return False


def _known_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + (field.alias or name))
        for kind in (field.annotation, *get_args(field.annotation)):
            if hasattr(kind, "model_fields"):
                keys += _known_keys(kind, f"{prefix}{name}.")
    return keys
