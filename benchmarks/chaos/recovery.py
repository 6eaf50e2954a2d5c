"""Waits until a run makes progress after a fault, and reports errors."""

import time
from dataclasses import dataclass, field

from benchmarks.chaos.checks import errors_of_launch
from benchmarks.chaos.faults import Struck, process_of
from benchmarks.chaos.launches import Launches
from benchmarks.chaos.plan import Fault
from benchmarks.chaos.tail import cut_tail
from benchmarks.run_processes import is_stopped
from contracts.records import Record, Resumed

POLL_S = 0.1
OF_ALL = ("disk", "launcher", "redis")  # targets that affect every process
DEADLY = ("kill", "kill node", "cut tail")
MOST_LAUNCHES = 3  # for one fault


@dataclass
class Recovery:
    """Seconds from the fault; None if that did not happen. errors: empty if all went well."""

    noticed_s: float | None = None
    recovered_s: float | None = None
    errors: list[str] = field(default_factory=list)
    is_over: bool = False  # whether the run cannot continue


class Awaited:
    """Watches one recovery.

    within_s: the longest wait after the end of a fault. steps: steps that must close after the first.
    """

    def __init__(self, fault: Fault, struck: Struck, launches: Launches, within_s: float, steps: int):
        self._fault = fault
        self._struck = struck
        self._launches = launches
        self._deadline = struck.until + within_s
        self._within_s = within_s
        self._steps = steps
        self._recovery = Recovery()
        self._launched = 0
        self._pid: int | None = None  # process of the target, while it is healthy
        self._well_since = 0.0

    def wait(self) -> Recovery:
        """Waits until the run has made progress, or cannot."""
        while not self._recovery.is_over and not self._has_moved_on():
            if time.time() > self._deadline:
                self._fail(f"HANG: no step within {self._within_s:g} s of the fault")
            time.sleep(POLL_S)
        return self._recovery

    def _fail(self, why: str) -> None:
        self._recovery.errors.append(why)
        self._recovery.is_over = True

    def _has_moved_on(self) -> bool:
        self._launches.look()
        self._notice()
        if self._launches.status is not None:
            self._launch_again()
            return False
        self._look_at_target()
        if self._pid is None:
            return False
        steps = self._launches.news.steps_since(self._well_since)
        is_server = self._fault.target.startswith("server-")
        serves = not is_server or self._launches.news.serves_since(self._fault.target, self._well_since)
        if not (steps and serves):
            return False
        self._recovery.recovered_s = self._recovery.recovered_s or time.time() - self._struck.at
        return len(steps) > self._steps

    def _notice(self) -> None:
        if self._recovery.noticed_s is not None:
            return
        at = self._struck.at
        is_of_all = self._fault.target in OF_ALL
        records = self._launches.news.launcher_since(at)
        times = [record.at for record in records if is_of_all or self._concerns(record)]
        said = self._launches.said_since(at)
        times += [said_at for said_at, line in said if is_of_all or self._fault.target in line]
        if times:
            self._recovery.noticed_s = min(times) - at

    def _concerns(self, record: Record) -> bool:
        names = [*getattr(record, "names", []), getattr(record, "name", "")]
        return isinstance(record, Resumed) or self._fault.target in names

    def _look_at_target(self) -> None:
        now = time.time()
        present = process_of(self._fault.target, self._launches)
        is_dying = self._fault.action in DEADLY and present == self._struck.pid
        if present is None or is_dying or is_stopped(present) or now < self._passes_at(present):
            self._pid = None
        elif present != self._pid:
            self._pid = present
            self._well_since = now
            self._recovery.recovered_s = None

    def _passes_at(self, pid: int) -> float:
        """Returns when the fault ends for a process: at once (0) if the process replaced the target."""
        is_of_disk = self._fault.target == "disk"
        return self._struck.until if pid == self._struck.pid or is_of_disk else 0.0

    def _launch_again(self) -> None:
        status = self._launches.status
        if not self._fault.ends_launch:
            self._recovery.errors.append(f"the launcher ended with status {status}: {self._last_words()}")
        self._launched += 1
        if self._launched > MOST_LAUNCHES:
            return self._fail(
                f"{MOST_LAUNCHES} launches with resume=true ended as well: {self._last_words()}"
            )
        time.sleep(max(0.0, self._struck.until - time.time()))
        self._recovery.errors += errors_of_launch(self._launches)
        if self._fault.action == "cut tail" and self._launched == 1:
            cut_tail(self._launches.run_dir)
        self._launches.again()
        self._deadline = time.time() + self._within_s

    def _last_words(self) -> str:
        said = self._launches.said_since(self._struck.at)
        return said[-1][1] if said else "it said nothing"
