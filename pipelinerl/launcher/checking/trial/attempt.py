"""Tries the user's parts before the start, in a process that ends: each is called once, on made-up input.

Called by the launcher's checks. A part that hangs, exits, crashes, or leaves threads and processes behind
harms nothing but its trial.
"""

import os
import re
import signal
import sys
from contextlib import suppress
from functools import partial
from pkgutil import resolve_name

from pipelinerl.config import RunConfig
from pipelinerl.errors import PartError
from pipelinerl.errors.part_faults import SHIPPED, is_users, place
from pipelinerl.launcher.checking.trial.named import ANY, SINGLE, has_own
from pipelinerl.launcher.forked import EndedError, result_of_forked
from pipelinerl.launcher.messages import say

SKIPPED = "(tried on made-up input; check_parts=false skips the trial)"
FRAME = re.compile(r'File "(.+)", line (\d+)')


def try_parts(config: RunConfig) -> None:
    """Calls each part of the user's once. Raises PartError, whose message names part, file and line."""
    if sys.platform != "linux" or not config.check_parts or not has_own(config):
        return
    from pipelinerl.launcher.checking.trial.parts import try_all  # it imports torch

    _import_shipped(config)
    with open(os.memfd_create("trial"), "w+b", buffering=0) as told:
        try:
            warnings = result_of_forked(partial(try_all, config, told))
        except PartError as error:
            raise PartError(f"{error} {SKIPPED}") from None
        except EndedError as end:
            told.seek(0)
            how = _how_it_ended(told.read().decode(), end, config.check_parts_s)
            raise PartError(f"{how} {SKIPPED}") from None
    for warning in warnings:
        say(f"warning: {warning}")


def _import_shipped(config: RunConfig) -> None:
    """Imports the classes that ship, which the checks need as well as the trial."""
    for name in SINGLE:
        target = getattr(config, name).target
        if target.partition(".")[0] in SHIPPED:
            with suppress(Exception):  # building it tells why
                resolve_name(target)


def _how_it_ended(told: str, end: EndedError, limit_s: float) -> str:
    """Returns what a part did that ended its process. `told`: its role, path and place, and its stack."""
    label, _, stack = told.partition("\n")
    if own := [(file, int(line)) for file, line in FRAME.findall(stack) if is_users(file)]:
        label = f"{label.partition(' (')[0]} ({place(*own[0])})"
    if end.by == signal.SIGALRM:
        limit = f"check_parts_s={limit_s:g}"
        return f"{label}: expected an end of all trials within {limit}, but it goes on"
    return f"{label}: expected {ANY}, but its process was {end}"
