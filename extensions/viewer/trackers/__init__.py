"""Trackers by name. The adapter of each is in the module of that name, which imports the tracker's library.

Called by the follower, and by the launcher, which checks names and missing libraries. Must not know the
metrics.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from extensions.viewer.trackers.base import Tracker

CLASSES = {"wandb": "Wandb", "trackio": "Trackio", "tensorboard": "TensorBoard"}


def unknown_tracker(name: str) -> str | None:
    """Returns an error message with the known names if `name` is unknown, or None."""
    return None if name in CLASSES else f"{name!r} is no tracker; there are: {', '.join(CLASSES)}"


def missing_library(name: str) -> str | None:
    """Returns how to install the tracker's library, or None if it is installed."""
    if (spec := find_spec(name)) and spec.origin:  # a directory with that name has no origin
        return None
    return f"the tracker {name} is not installed: pip install -e '.[{name}]'"


def make_tracker(name: str, run_dir: Path, config: dict) -> Tracker:
    """Returns the tracker. Only this function imports its library."""
    # Imported by name, because the launcher imports this module and must not import the libraries.
    return getattr(import_module(f"{__name__}.{name}"), CLASSES[name])(run_dir, config)
