"""The options of chat templates: which ones a template reads, and how they are passed to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import jinja2
from jinja2 import meta

from pipelinerl.conversations.base import Option

CLOCK = "strftime_now"  # the function that tells templates the date
GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception"}
TRACKED = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # a tag of transformers


def options_of(template: str) -> list[str]:
    """Returns the names that the template reads and that nothing else sets, and its clock."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    read = meta.find_undeclared_variables(environment.parse(TRACKED.sub("", template)))
    return sorted(name for name in read - GIVEN - {*environment.globals} if not name.endswith("_token"))


def offered(template: str) -> list[str]:
    """Returns the options of a template without names that it also sets itself, which may be no options."""
    itself = {*re.findall(r"\{%-?\s*set\s+(\w+)", template)}
    return [name for name in options_of(template) if name not in itself]


def template_arguments(options: Mapping[str, Option]) -> dict[str, Any]:
    """Returns the options as arguments of a template. The option `strftime_now` is a date, as YYYY-MM-DD.

    Raises ValueError for another date.
    """
    if CLOCK not in options:
        return dict(options)
    return {**options, CLOCK: stopped_clock(str(options[CLOCK]))}


def stopped_clock(day: str) -> Callable[[str], str]:
    """Returns a clock that always tells the date `day`."""
    try:
        return date.fromisoformat(day).strftime
    except ValueError as error:
        raise ValueError(f"{CLOCK}={day} is no date; write YYYY-MM-DD") from error
