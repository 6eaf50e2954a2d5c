"""Refuses options that a server's adapter decides, before anything starts.

An adapter that is a package may have a module `decided` with `DECIDED`. It maps an option's name, with
underscores, to its only value and the reason.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def refused_option(module: str, arguments: Mapping[str, object]) -> str | None:
    """Returns a message if an option is set otherwise than the adapter `module` decides, else None.

    A module that is no package, or has no module `decided`, is not imported, and refuses nothing.
    """
    found = None
    with suppress(ModuleNotFoundError):
        found = find_spec(module)
    folders = (found and found.submodule_search_locations) or ()
    if not any(Path(folder, "decided.py").is_file() for folder in folders):
        return None
    decided = import_module(f"{module}.decided").DECIDED
    for option, value in arguments.items():
        only, why = decided.get(option.replace("-", "_"), (value, ""))
        if value not in (None, only):
            return f"{option}={value} cannot be set: {why}"
    return None
