"""Accounts for all group ids of a run, independently of `pipelinerl.report.accounting`, which it tests.

Each started group must be trained, dropped for a named reason, or in flight, exactly once. A resumption
undoes training above its version.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from contracts.records import Record, Resumed, Settled, Started
from pipelinerl.streams.events import recorded_events
from pipelinerl.streams.of_run import recorded_streams

IN_FLIGHT = "in flight"


class Ledger(NamedTuple):
    """The groups by outcome, and violations of the accounting."""

    outcomes: dict[str, set[int]]
    errors: list[str]


class _Settlement(NamedTuple):
    how: str
    version: int | None  # that the step produced
    group: int


def ledger_of(run_dir: Path) -> Ledger:
    """Returns the ledger of a recorded run, launch by launch."""
    with recorded_streams(run_dir) as streams:
        return ledger(recorded_events(streams))


def ledger(records: Iterable[Record]) -> Ledger:
    """Returns the ledger of these events; each resumption must follow the events of the previous launch."""
    started: Counter[int] = Counter()
    settled: list[_Settlement] = []
    for record in records:
        match record:
            case Started(group_id=group):
                started[group] += 1
            case Settled():
                settled += _settlements(record)
            case Resumed():
                settled = [s for s in settled if s.version is None or s.version <= record.version]
                settled += [_Settlement("interrupted", None, group) for group in record.interrupted]
                settled += [_Settlement("rolled_back", None, group) for group in record.rolled_back]
    outcomes: dict[str, set[int]] = {}
    for settlement in settled:
        outcomes.setdefault(settlement.how, set()).add(settlement.group)
    times = Counter(settlement.group for settlement in settled)
    if in_flight := started.keys() - times.keys():
        outcomes[IN_FLIGHT] = in_flight
    return Ledger(outcomes, list(_errors(started, times)))


def _settlements(record: Settled) -> Iterator[_Settlement]:
    for group in record.group_ids:
        yield _Settlement(record.reason or "trained", record.version, group)


def _errors(started: Counter[int], settled: Counter[int]) -> Iterator[str]:
    if twice := sorted(group for group, times in settled.items() if times > 1):
        yield f"groups settled twice: {twice}"
    if twice := sorted(group for group, times in started.items() if times > 1):
        yield f"groups started twice: {twice}"
    if unknown := sorted(settled.keys() - started.keys()):
        yield f"groups settled and never started: {unknown}"
