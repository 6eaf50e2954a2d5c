"""Gives every job of a run its place before the run begins, or says in time what is missing."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pipelinerl.config import ResolvedRun, RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.executors.base import Executor, Fate, Lost, Placed, Slot, Waiting
from pipelinerl.launcher.jobs import JobPlanner
from pipelinerl.launcher.messages import say
from pipelinerl.launcher.wants import Member

ITS_NODE = "<its node>"
POLL_S = 0.1
SAY_EVERY_S = 10.0  # while something waits for a place


class PlacedRun(NamedTuple):
    """A run whose jobs have their places."""

    config: ResolvedRun
    run_dir: Path
    planner: JobPlanner
    executor: Executor
    slots: dict[str, Slot]


def place(config: RunConfig, executor: Executor, members: Iterable[Member]) -> dict[str, Slot]:
    """Returns the places of all jobs but those servers beyond `world.servers_min` that have none yet.

    Raises PlanError where they have no place within `executor.place_timeout_s`.
    """
    members = list(members)
    executor.ask(member.want for member in members)
    began = time.monotonic()
    said = began
    while True:
        fates = executor.look()
        waits = _waits_for(config, members, fates)
        if not waits:
            return {name: fate.slot for name, fate in fates.items() if isinstance(fate, Placed)}
        now = time.monotonic()
        if now - began > executor.place_timeout_s:
            raise PlanError(
                f"no place within executor.place_timeout_s={executor.place_timeout_s:g} s: {waits}"
            )
        if now - said > SAY_EVERY_S:
            say(waits)
            said = now
        time.sleep(POLL_S)


def anywhere(members: Iterable[Member]) -> dict[str, Slot]:
    """Returns a place of each job on a node that is not known yet, for a plan."""
    gpus = {want.name: f"x {want.gpus}" if want.gpus else "" for _, want in members}
    return {want.name: Slot(ITS_NODE, ITS_NODE, want.port, gpus[want.name]) for _, want in members}


def _waits_for(config: RunConfig, members: Iterable[Member], fates: Mapping[str, Fate]) -> str | None:
    """Returns what the run still needs in order to begin, in words."""
    waiting = {}
    lost = {}  # the supervisor asks for these servers again, if the run begins without them
    placed = 0
    for role, want in members:
        fate = fates[want.name]
        if isinstance(fate, Lost):
            lost[want.name] = f"the place of {want.name} is lost: {fate.why}"
            if role != "server":
                raise PlanError(lost[want.name])
        if isinstance(fate, Waiting):
            waiting[want.name] = (role, fate.needs)
        placed += role == "server" and isinstance(fate, Placed)
    needed = [name for name, (role, _) in waiting.items() if role != "server"]
    if not needed and placed < config.servers_min:
        needed = [name for name, (role, _) in waiting.items() if role == "server"]
        if placed + len(needed) < config.servers_min:
            raise PlanError("; ".join(lost.values()))
    return f"{', '.join(needed)}: waiting for {waiting[needed[0]][1]}" if needed else None
