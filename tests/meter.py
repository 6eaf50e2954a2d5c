"""Measures the CPU seconds of each test, its descendants included, and holds them against tests/budget.toml.

`tests/conftest.py` registers it. CPU seconds are those of the reference machine: each process measures a loop
now and then, and divides by how much longer than on that machine the loop takes, on a busy or slow processor.
"""

import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BUDGET = Path(__file__).with_name("budget.toml")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOOP = range(1_000_000)
LOOP_EVERY = 20  # tests
DEAREST = 10  # tests that a run lists
ABOVE = 1.5  # factor of a budget that fails: CPU seconds vary with what else the machine does
OVER_BUDGET = 7  # an exit status that pytest itself does not use


@dataclass(frozen=True)
class Budget:
    """What tests may cost, in CPU seconds.

    loop_s: time of the loop on the reference machine. test_s: a test's most, unless `tests` lists its name
    without parameters, or its file. folders: sums of the tests in each folder.
    """

    loop_s: float
    test_s: float
    tests: Mapping[str, float] = field(default_factory=dict)
    folders: Mapping[str, float] = field(default_factory=dict)

    def exceeded(self, costs: Mapping[str, float]) -> list[str]:
        """Returns a line for each test and each folder that costs too much. `costs`: by the test's name."""
        sums: dict[str, float] = defaultdict(float)
        lines = []
        for name, cost in costs.items():
            sums[_folder(name)] += cost
            of_its_file = self.tests.get(name.partition("::")[0], self.test_s)
            most = self.tests.get(name.partition("[")[0], of_its_file)
            if cost > ABOVE * most:
                lines.append(f"{name}: {cost:.1f} CPU seconds, and {most:g} are its budget")
        for folder, cost in sums.items():
            most = self.folders.get(folder, self.test_s)
            if cost > ABOVE * most:
                lines.append(f"{folder}: {cost:.1f} CPU seconds, and {most:g} are its budget")
        return lines


class Meter:
    """The pytest plugin: measures in each worker, and judges where the results come together."""

    def __init__(self, budget: Budget):
        self._budget = budget
        self._began = 0.0
        self._measured = 0
        self._slowness = 1.0
        self._costs: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._measured % LOOP_EVERY == 0:
            self._slowness = loop_s() / self._budget.loop_s
        self._measured += 1
        self._began = cpu_s_of_tree()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            used = cpu_s_of_tree() - self._began
            if used > self._budget.test_s / 2:  # the processor may have become busy meanwhile
                self._slowness = max(self._slowness, loop_s() / self._budget.loop_s)
            cost = max(0.0, used) / self._slowness  # less than 0 if servers ended that are no longer counted
            report.user_properties = [*report.user_properties, ("cpu_s", cost)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._costs[report.nodeid] = dict(report.user_properties).get("cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._costs) > DEAREST:
            dearest = sorted(self._costs, key=self._costs.get, reverse=True)[:DEAREST]
            total = sum(self._costs.values())
            terminalreporter.write_line(f"\n{total:.0f} CPU seconds in tests; the dearest:")
            for name in dearest:
                terminalreporter.write_line(f"{self._costs[name]:7.1f} {name}")
        for line in self._budget.exceeded(self._costs):
            terminalreporter.write_line(f"over budget: {line}", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        judges = not hasattr(session.config, "workerinput")
        if judges and session.exitstatus == pytest.ExitCode.OK and self._budget.exceeded(self._costs):
            session.exitstatus = OVER_BUDGET


def budget() -> Budget:
    """Returns the budget of tests/budget.toml."""
    return Budget(**tomllib.loads(BUDGET.read_text()))


def loop_s() -> float:
    """Returns the CPU seconds of a loop, which tell how fast the processor is at the moment."""
    began = time.process_time()
    for _ in LOOP:
        pass
    return time.process_time() - began


def cpu_s_of_tree() -> float:
    """Returns the CPU seconds of this process and its descendants, with those that were waited for."""
    ticks = 0
    tree = [os.getpid()]
    for process in tree:
        with suppress(OSError):  # it has ended
            stat = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(map(int, stat[11:15]))
            threads = os.listdir(f"/proc/{process}/task")
            tree += [child for thread in threads for child in _children(process, thread)]
    return ticks / TICKS_PER_S


def _children(process: int, thread: str) -> list[int]:
    with suppress(OSError):  # the thread has ended
        return [*map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())]
    return []


def _folder(name: str) -> str:
    return name.partition("::")[0].rpartition("/")[0]
