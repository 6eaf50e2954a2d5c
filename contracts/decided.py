"""Refuses options and models that a server's adapter does not take, before anything starts.

An adapter that is a package may have a module `decided`, with any of these:

* `DECIDED`: maps an option's name, with underscores, to its only value and the reason.
* `NEVER`: maps an option's name to a value that it must not have and the reason.
* `check_model(model)`: raises ValueError, with a one-line message, for a model that is not served.
* `check_run(run)`: raises ValueError, with a one-line message, for a run, given as its whole configuration.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def refused_option(module: str, arguments: Mapping[str, object]) -> str | None:
    """Returns a message if an option is set as the adapter `module` does not take it, else None."""
    adapter = _decided_of(module)
    for option, value in arguments.items():
        name = option.replace("-", "_")
        only, why = getattr(adapter, "DECIDED", {}).get(name, (value, ""))
        never, why_not = getattr(adapter, "NEVER", {}).get(name, (None, ""))
        if value is not None and (_text(value) != _text(only) or _text(value) == _text(never)):
            return f"{option}={value} cannot be set: {why or why_not}"
    return None


def refused_model(module: str, model: str) -> str | None:
    """Returns a message if the adapter `module` does not serve the model directory, else None."""
    check = getattr(_decided_of(module), "check_model", None)
    try:
        if check and Path(model).is_dir():
            check(model)
    except ValueError as error:
        return str(error)
    return None


def refused_run(module: str, run: Mapping[str, Any]) -> str | None:
    """Returns a message if the adapter `module` does not serve a run of this configuration, else None."""
    check = getattr(_decided_of(module), "check_run", None)
    try:
        if check:
            check(run)
    except ValueError as error:
        return str(error)
    return None


def takes_model(module: str) -> bool:
    """Returns True if the adapter `module` serves the directory that its option `--model` names."""
    return hasattr(_decided_of(module), "check_model")


def _decided_of(module: str) -> Any:
    """Returns the module `decided` of an adapter, or None. Nothing else of the adapter is imported."""
    found = None
    with suppress(ModuleNotFoundError):
        found = find_spec(module)
    folders = (found and found.submodule_search_locations) or ()
    there = any(Path(folder, "decided.py").is_file() for folder in folders)
    return import_module(f"{module}.decided") if there else None


def _text(value: object) -> str:
    """Returns the value as a command line writes it."""
    return str(value).lower()
