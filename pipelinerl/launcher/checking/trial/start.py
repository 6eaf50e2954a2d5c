"""Tries the user's components before the start, in a forked process.

Called by the launcher's checks. A component that hangs, exits or crashes, or leaves threads and processes
behind, harms only the forked process.
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
from pipelinerl.errors.part_faults import SHIPPED, is_users, location
from pipelinerl.launcher.checking.trial.watch import ANY, has_user_component
from pipelinerl.launcher.forked import EndedError, result_of_forked
from pipelinerl.launcher.terminal import print_message

SINGLE = ("domain", "objective", "advantage", "normalisation", "packing", "health", "trainer", "sampler")
LISTS = ("regularisers", "filters", "rewards")
SKIPPED = "(tried on made-up input; check_parts=false skips the trial)"
FRAME = re.compile(r'File "(.+)", line (\d+)')


def try_components(config: RunConfig) -> None:
    """Calls each user component once. Raises PartError, whose message names the component, file and line."""
    named = [getattr(config, name) for name in (*SINGLE, *LISTS)]
    has_any = has_user_component(named) or has_user_component(config.judging.verifiers)
    if sys.platform != "linux" or not config.check_parts or not has_any:
        return
    from pipelinerl.launcher.checking.trial.process import run_trial  # imports torch

    _import_shipped(config)
    with open(os.memfd_create("trial"), "w+b", buffering=0) as report:
        try:
            warnings = result_of_forked(partial(run_trial, config, report))
        except PartError as error:
            raise PartError(f"{error} {SKIPPED}") from None
        except EndedError as end:
            report.seek(0)
            how = _how_it_ended(report.read().decode(), end, config.check_parts_s)
            raise PartError(f"{how} {SKIPPED}") from None
    for warning in warnings:
        print_message(f"warning: {warning}")


def _import_shipped(config: RunConfig) -> None:
    """Imports the shipped classes before the fork, because the later checks need them too."""
    for name in SINGLE:
        target = getattr(config, name).target
        if target.partition(".")[0] in SHIPPED:
            with suppress(Exception):  # the check that builds it reports the error
                resolve_name(target)


def _how_it_ended(report: str, end: EndedError, limit_s: float) -> str:
    """Returns how a component ended its process. `report`: its role, class path, location and stack."""
    label, _, stack = report.partition("\n")
    if own := [(file, int(line)) for file, line in FRAME.findall(stack) if is_users(file)]:
        label = f"{label.partition(' (')[0]} ({location(*own[0])})"
    if end.by == signal.SIGALRM:
        limit = f"check_parts_s={limit_s:g}"
        return f"{label}: expected an end of all trials within {limit}, but it goes on"
    return f"{label}: expected {ANY}, but its process was {end}"
