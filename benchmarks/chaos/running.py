"""One run from its first launch to its end, with the faults of its plan."""

import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from shutil import ignore_patterns

from benchmarks.chaos.checks import errors_of_launch, errors_of_run, errors_of_running
from benchmarks.chaos.cluster import cluster_of, start_node
from benchmarks.chaos.disk import small_disk
from benchmarks.chaos.faults import NoTargetError, Struck, strike
from benchmarks.chaos.launches import Launches, Start, start_program
from benchmarks.chaos.news import News
from benchmarks.chaos.plan import Fault, Plan, settings_of
from benchmarks.chaos.recovery import Awaited, Recovery
from benchmarks.relays import Relays
from contracts.records import StepClosed
from pipelinerl.streams.events import recorded
from pipelinerl.streams.of_run import recorded_streams

ENDLESS = 1_000_000  # steps
LOOK_S = 0.005
LAST_STEPS = 2  # steps after all faults
INTERRUPTED = 130
START = Fault("stop", "actor", 0, 0.0)  # stands for the wait for a run's first steps


@dataclass
class Outcome:
    """The outcome of one fault. at_s: seconds since the first launch."""

    fault: Fault
    at_s: float
    recovery: Recovery
    skipped: str = ""  # why it was not injected
    phase: str = ""  # of a run that takes turns, when it was injected


@dataclass
class Result:
    """The outcome of one run. errors: at its end, or where it stopped."""

    plan: Plan
    outcomes: list[Outcome] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0

    @property
    def failures(self) -> list[str]:
        """The errors, one line each."""
        of_faults = [
            f"fault {number} ({o.fault.action} {o.fault.target}): {error}"
            for number, o in enumerate(self.outcomes, start=1)
            for error in o.recovery.errors
        ]
        return of_faults + [f"end: {error}" for error in self.errors]


def run_plan(plan: Plan, directory: Path, within_s: float, start: Start = start_program) -> Result:
    """Runs the plan in a new directory, and leaves no process. After a failure the run's files are there."""
    result = Result(plan)
    settings = [*settings_of(plan), f"max_steps={ENDLESS}"]
    disk = directory / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    fills_disk = any(fault.action == "fill disk" for fault in plan.faults)
    small = small_disk(disk) if fills_disk else nullcontext(False)
    with small as can_fill, cluster_of(plan.shape) as nodes, Relays(plan.shape.relays) as relays:
        settings += relays.settings if plan.shape.relays else []
        launches = Launches(disk / "run", directory / "console", settings, start, nodes, relays)
        trial = Trial(result, launches, within_s, can_fill)
        try:
            trial.run()
        finally:
            launches.kill_all()
        result.seconds = trial.seconds
        if result.failures and (disk / "run").exists():
            shutil.copytree(disk / "run", directory / "run", ignore=ignore_patterns("writer.lock"))
            if nodes:
                shutil.copytree(nodes.logs, directory / "ray-logs")
    return result


class Trial:
    def __init__(self, result: Result, launches: Launches, within_s: float, can_fill: bool):
        self._result = result
        self._launches = launches
        self._within_s = within_s
        self._can_fill = can_fill
        self._began = time.time()

    @property
    def seconds(self) -> float:
        """Seconds since the first launch."""
        return time.time() - self._began

    def run(self) -> None:
        """Injects one fault after the other, and then ends the run."""
        faults = self._result.plan.faults
        first = self._await(START, Struck(self._began, 0, self._began), faults[0].after_steps)
        self._result.errors += first.errors
        if first.is_over:
            return
        for fault, following in zip(faults, [*faults[1:], None], strict=True):
            outcome = self._do(fault, following.after_steps if following else 0)
            self._result.outcomes.append(outcome)
            if outcome.recovery.is_over:
                return
        self._end()

    def _do(self, fault: Fault, steps: int) -> Outcome:
        if fault.action == "fill disk" and not self._can_fill:
            return Outcome(fault, self.seconds, Recovery(), skipped="mounting a small disk is not permitted")
        time.sleep(fault.delay_s)
        phase = self._wait_for_phase(fault.phase) if fault.phase else ""
        try:
            struck = strike(fault, self._launches)
        except NoTargetError as error:
            return Outcome(fault, self.seconds, Recovery(errors=[str(error)], is_over=True))
        at_s = self.seconds
        recovery = self._await(fault, struck, steps)
        if not recovery.is_over:
            recovery.errors += errors_of_running(self._launches)
            if fault.action == "kill node":
                start_node(self._launches.nodes)  # the next spare node
        return Outcome(fault, at_s, recovery, phase=phase)

    def _wait_for_phase(self, phase: str) -> str:
        """Waits until the phase begins, at most `within_s` seconds. Returns the phase that is under way."""
        news = News(self._launches.run_dir)
        news.read()
        since = time.time()
        while news.phases_since(since)[-1:] != [phase] and time.time() < since + self._within_s:
            time.sleep(LOOK_S)
            news.read()
        return (news.phases_since(0) or ["none"])[-1]

    def _await(self, fault: Fault, struck: Struck, steps: int) -> Recovery:
        return Awaited(fault, struck, self._launches, self._within_s, steps).wait()

    def _end(self) -> None:
        """Interrupts the run, and resumes it for its last steps."""
        launches = self._launches
        launches.interrupt()
        status = launches.wait(self._within_s)
        if status != INTERRUPTED:
            self._result.errors.append(f"the interrupted launcher ended with status {status}")
        self._result.errors += errors_of_launch(launches)
        self._result.steps = steps_made(launches.run_dir) + LAST_STEPS
        launches.again(f"max_steps={self._result.steps}")
        status = launches.wait(self._within_s)
        launches.look()
        if status != 0:
            words = [line for _, line in launches.said_since(0)][-1:]
            self._result.errors.append(f"the last launch ended with status {status}: {words}")
            return
        self._result.errors += errors_of_launch(launches)
        self._result.errors += errors_of_run(self._result.plan, launches.run_dir, self._result.steps)


def steps_made(run_dir: Path) -> int:
    """Returns the version that the last closed step produced."""
    with recorded_streams(run_dir) as streams:
        trained = recorded(streams, "trainer_events")
        return max((record.version for record in trained if isinstance(record, StepClosed)), default=0)
