"""The groups of `conf/` and their choices, in the project's `conf/` and in that of the current directory.

A choice is described by the first line of the comment that its file begins with.
"""

from pathlib import Path

import yaml

from pipelinerl.paths import ROOT

PARTS_OF_ALL = ("exp", "scale")  # groups whose files set keys of every section


def chosen_by_default() -> dict[str, str | None]:
    """Returns the choice that the demo makes in each group."""
    defaults = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["defaults"]
    return {group: choice for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()}


def groups() -> list[str]:
    """Returns the names of all groups."""
    return [*chosen_by_default(), *PARTS_OF_ALL]


def choices_of(group: str) -> list[str]:
    """Returns the names of a group's choices."""
    return sorted(_files(group))


def sentence_of(group: str, choice: str) -> str:
    """Returns the first line of the comment at the beginning of a choice's file, or nothing without one."""
    for line in _files(group)[choice].read_text(errors="replace").splitlines():
        if not line.startswith("#"):
            return ""
        if not line.startswith("# @package"):
            return line.lstrip("# ").strip()
    return ""


def options_in(group: str, choice: str) -> list[str]:
    """Returns the keys that a choice's file sets."""
    content = yaml.safe_load(_files(group)[choice].read_text(errors="replace"))
    return [key for key in content if key != "defaults"] if isinstance(content, dict) else []


def target_of(group: str, choice: str) -> str | None:
    """Returns the path of the class that a choice's file names, if it names one."""
    content = yaml.safe_load(_files(group)[choice].read_text(errors="replace"))
    return content.get("_target_") if isinstance(content, dict) else None


def _files(group: str) -> dict[str, Path]:
    folders = {ROOT / "conf" / group, Path.cwd() / "conf" / group}
    return {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
