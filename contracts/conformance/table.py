"""Prints verdicts as a table, and formats them as text and as JSON."""

import io
import json
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from contracts.conformance.verdicts import Verdict

STYLE = {"pass": "green", "fail": "bold red", "not declared": "dim"}


def all_hold(verdicts: Sequence[Verdict]) -> bool:
    """Returns True if every declared guarantee holds, and at least one was declared."""
    return exit_status(verdicts) == 0


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Returns 0 if every declared guarantee holds, 1 if one does not, and 2 if none is declared."""
    states = [verdict.state for verdict in verdicts]
    return 1 if "fail" in states else 0 if "pass" in states else 2


def depth(thorough: bool) -> str:
    """Returns the name of the depth to which guarantees are checked."""
    return "thorough" if thorough else "default"


def print_table(title: str, verdicts: Sequence[Verdict], command: str, thorough: bool = False) -> None:
    """Prints the table, and below it the details of each failure.

    `command` followed by ` --only CODE --part NAME` repeats the check that failed.
    """
    console = Console()
    title = f"{title} (depth: {depth(thorough)})"
    _print(console, title, verdicts)
    for verdict in verdicts:
        if verdict.state == "fail":
            alone = f"  alone:     {command} --only {verdict.guarantee.code} --part {verdict.part}"
            console.print(
                f"{describe_failure(verdict)}\n{alone}", markup=False, highlight=False, soft_wrap=True
            )


def as_text(title: str, verdicts: Sequence[Verdict]) -> str:
    """Returns the table and the details of each failure as text, for a log."""
    text = io.StringIO()
    _print(Console(file=text, width=160), title, verdicts)
    return text.getvalue() + "\n".join(describe_failure(v) for v in verdicts if v.state == "fail")


def _print(console: Console, title: str, verdicts: Sequence[Verdict]) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("guarantee", "verdict", "measured"):
        table.add_column(column)
    table.add_column("s", justify="right")
    for verdict in verdicts:
        row = verdict.guarantee
        state = f"[{STYLE[verdict.state]}]{verdict.state}[/]"
        name = f"{row.code} {row.name}"
        if verdict.part and verdict.state != "fail":
            name += f": {verdict.part} alone"
        table.add_row(name, state, escape(verdict.measured), f"{verdict.seconds:.1f}")
    console.print(table)


def describe_failure(verdict: Verdict) -> str:
    """Returns what was expected and how to reproduce the failure, as text."""
    return "\n".join(
        [
            f"\n{verdict.guarantee.code} {verdict.guarantee.name}",
            f"  expected:  {verdict.expected}",
            f"  reproduce: {verdict.reproduce}",
        ]
    )


def as_json(verdicts: Sequence[Verdict], thorough: bool = False) -> str:
    """Returns the verdicts as JSON; `kept` is true if every declared guarantee holds."""
    rows = [
        {
            "guarantee": v.guarantee.code,
            "name": v.guarantee.name,
            "verdict": v.state,
            "part": v.part,
            "measured": v.measured,
            "expected": v.expected,
            "reproduce": v.reproduce,
            "seconds": round(v.seconds, 3),
        }
        for v in verdicts
    ]
    report = {"kept": all_hold(verdicts), "depth": depth(thorough), "guarantees": rows}
    return json.dumps(report, indent=2)
