"""Selects what a run tries, by the commit: an eighth of the broken adapters and hostile responses, and of the
tests that are marked `in_turn`.

`ROTATION=all` tries all of them, as `make soak` does. `ROTATION=0` to `ROTATION=7` is a given part.
"""

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from pipelinerl.paths import ROOT

PARTS = 8
Item = TypeVar("Item")


def eighth(items: Sequence[Item]) -> Sequence[Item]:
    """Returns every eighth item, or all of them."""
    return rotated(items, chosen())


def rotated(items: Sequence[Item], part: int | None) -> Sequence[Item]:
    """Returns the items of a part, 0 to 7; with None, all items."""
    return items if part is None else items[part::PARTS]


def of_other_turns(marked: Sequence[Item], part: int | None) -> set[Item]:
    """Returns the tests that this part leaves out: seven of eight. With None, none."""
    return set(marked) - set(rotated(marked, part))


@cache
def chosen() -> int | None:
    """Returns the part of this run; None is all of them."""
    setting = os.environ.get("ROTATION", "")
    return part_of(setting, "0" if setting else _commit())


def part_of(setting: str, commit: str) -> int | None:
    """Returns the part that `setting` names. If it is empty, the commit's hash decides."""
    if setting == "all":
        return None
    if setting:
        part = int(setting) if setting.isdecimal() else PARTS
        if part not in range(PARTS):
            raise ValueError(f"ROTATION={setting} is not all, or 0 to {PARTS - 1}")
        return part
    return int(commit, 16) % PARTS


def description() -> str:
    """Returns the choice as a line of text."""
    if chosen() is None:
        return "all of what is tried in turn"
    how = "ROTATION" if os.environ.get("ROTATION") else "the commit's hash"
    return f"part {chosen()} of what is tried in turn, chosen by {how}; ROTATION=all tries all"


def _commit() -> str:
    """Returns the hash of the checked-out commit; 0 without git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "0"
    return done.stdout.strip() if done.returncode == 0 else "0"
