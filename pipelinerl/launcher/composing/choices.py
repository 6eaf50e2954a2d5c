"""The groups of `conf/` and their choices, in the project's `conf/`, the current directory's and extensions'.

A choice is described by the first line of the comment that its file begins with.
"""

from pathlib import Path

import yaml

from pipelinerl.paths import ROOT, conf_directories

PARTS_OF_ALL = ("exp", "scale")  # groups whose files set keys of every section


def chosen_by_default() -> dict[str, str | list[str] | None]:
    """Returns the choice that the demo makes in each group; a list where a run may have several."""
    defaults = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["defaults"]
    return {group: choice for entry in defaults if isinstance(entry, dict) for group, choice in entry.items()}


def groups() -> list[str]:
    """Returns the names of all groups."""
    return [*chosen_by_default(), *PARTS_OF_ALL]


def choices_of(group: str) -> list[str]:
    """Returns the names of a group's choices."""
    return sorted(files_of(group))


def sentence_of(group: str, choice: str) -> str:
    """Returns the first line of the comment at the beginning of a choice's file, or nothing without one."""
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
    """Returns the path of the class that a choice's file names, if it names one."""
    content = yaml.safe_load(files_of(group)[choice].read_text(errors="replace"))
    return content.get("_target_") if isinstance(content, dict) else None


def files_of(group: str) -> dict[str, Path]:
    """Returns the file of each choice of a group."""
    folders = [conf / group for conf in reversed(conf_directories())]  # the first one's choice stays
    return {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
