"""The table of held-out success at the end of a run: the first, best and last evaluation, by held-out set."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contracts.records import Evaluated, SetResult

ALL = "all"


def print_evaluations(evaluations: Sequence[Evaluated]) -> None:
    if not evaluations:
        return
    table = Table("held out", "problems", "attempts", "first", "best", "last")
    for name in rows_of(evaluations[-1]):
        table.add_row(escape(name), *cells(evaluations, name))
    Console().print(table)


def rows_of(result: Evaluated) -> list[str]:
    names = [of.name for of in result.sets]
    return names if len(names) == 1 else [*names, ALL]


def cells(evaluations: Sequence[Evaluated], name: str) -> list[str]:
    """Returns the problems, the attempts per problem, and the first, best and last success of a set."""
    found = [(on_set(result, name), result) for result in evaluations]
    found = [(of, result) for of, result in found if of]
    best = max(found, key=lambda pair: pair[0].success)
    last = found[-1][0]
    attempts = f"avg@{last.attempts}" if last.attempts else ""
    return [str(last.problems), attempts, *(format_result(*pair) for pair in (found[0], best, found[-1]))]


def on_set(result: Evaluated, name: str) -> SetResult | None:
    if name == ALL:
        return SetResult(
            name=ALL, problems=result.problems, attempts=0, success=result.success, failed=result.failed
        )
    return next((of for of in result.sets if of.name == name), None)


def format_result(of: SetResult, result: Evaluated) -> str:
    """Returns a success with the versions that sampled it and the number of failed attempts, as text."""
    first = result.first_version
    last = result.last_version
    versions = f"v{first}" if first == last else f"v{first}–{last}"
    return f"{of.success:.3f} ({versions}{f', {of.failed} failed' if of.failed else ''})"
