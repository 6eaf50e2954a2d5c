"""Trackers by their names. Each has a module of that name, which imports its library.

Called by the follower, and by the launcher, which asks for names and for what is missing. Must not know the
metrics.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from pipelinerl.view.trackers.base import Tracker

CLASSES = {"wandb": "Wandb", "trackio": "Trackio", "tensorboard": "TensorBoard"}


def unknown_tracker(name: str) -> str | None:
    """Returns which names there are if this is none of them."""
    return None if name in CLASSES else f"{name!r} is no tracker; there are: {', '.join(CLASSES)}"


def missing_library(name: str) -> str | None:
    """Returns what to do if the tracker's library is not installed, or None if it is."""
    if (spec := find_spec(name)) and spec.origin:  # without it: a directory of that name
        return None
    return f"the tracker {name} is not installed: pip install -e '.[{name}]'"


def make_tracker(name: str, run_dir: Path, config: dict) -> Tracker:
    """Returns the tracker of this name. Its library is imported here and nowhere else."""
    # By the name and not by a statement: the launcher imports this module, and no library.
    return getattr(import_module(f"{__name__}.{name}"), CLASSES[name])(run_dir, config)
