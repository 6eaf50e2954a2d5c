"""Formats the effects of faults on runs as Markdown tables."""

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.chaos.running import Outcome, Result

HEAD = ["fault", "target", "at", "noticed", "recovered", "outcome"]
KINDS_HEAD = ["fault", "times", "noticed: median", "worst", "recovered: median", "worst", "failed"]


def faults_table(result: Result) -> str:
    """Returns one row per fault, in order."""
    return table([HEAD, *map(_row, result.outcomes)])


def kinds_table(results: Iterable[Result]) -> str:
    """Returns one row per kind of fault, with the median and the worst time over all runs."""
    kinds: dict[str, list[Outcome]] = {}
    for outcome in (outcome for result in results for outcome in result.outcomes if not outcome.skipped):
        kinds.setdefault(outcome.fault.kind, []).append(outcome)
    rows = []
    for kind, outcomes in sorted(kinds.items()):
        noticed = _median_and_worst([outcome.recovery.noticed_s for outcome in outcomes])
        recovered = _median_and_worst([outcome.recovery.recovered_s for outcome in outcomes])
        failed = sum(bool(outcome.recovery.errors) for outcome in outcomes)
        rows.append([kind, str(len(outcomes)), *noticed, *recovered, str(failed)])
    return table([KINDS_HEAD, *rows])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first row is its header."""
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def _row(outcome: Outcome) -> list[str]:
    fault = outcome.fault
    lasting = f" for {fault.seconds:g} s" if fault.seconds else ""
    lasting += f" ({outcome.phase})" if outcome.phase else ""
    said = outcome.skipped and f"skipped: {outcome.skipped}"
    said = said or "; ".join(outcome.recovery.errors) or "ok"
    times = [outcome.at_s, outcome.recovery.noticed_s, outcome.recovery.recovered_s]
    return [fault.action + lasting, fault.target, *map(_seconds, times), said]


def _median_and_worst(times: Sequence[float | None]) -> list[str]:
    known = [time for time in times if time is not None]
    return [_seconds(median(known)), _seconds(max(known))] if known else [_seconds(None)] * 2


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:.1f} s"
