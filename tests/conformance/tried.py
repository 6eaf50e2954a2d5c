"""The table of docs/conformance.md: how many adapters the tests try the kit on, with examples of each kind.

`python -m tests.conformance.tried --write` writes it anew.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.conformance.broken_servers import MUTANTS as SERVERS
from tests.conformance.odd_servers import ODD
from tests.conformance.trainer_mutants import MUTANTS as TRAINERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN = "<!-- written by python -m tests.conformance.tried --write -->"
END = "<!-- end of what is written -->"
EXAMPLES = 2  # at most, of a row


def words(name: str) -> str:
    """Returns the name of a class or a function as words."""
    return (
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[a-z])(?=[0-9])", " ", name)
        .replace("_", " ")
        .lower()
    )


def table() -> str:
    """Returns the table of the page."""
    broken = [(mutant.own, name) for name, mutant in SERVERS.items() if name != "Correct"]
    trainers = [(mutant.breaks, mutant.trainer.__name__) for mutant in TRAINERS]
    lines = [
        f"{len(broken)} broken servers, {len(trainers)} broken trainers, "
        f"{len(ODD)} odd servers that keep the contract:",
        "",
        "| breaks | adapters | for example |",
        "|---|---|---|",
    ]
    for code in sorted({code for code, _ in broken + trainers}, key=lambda c: (c[0], int(c[1:]))):
        lines.append(_row(code, [name for own, name in broken + trainers if own == code]))
    return "\n".join([*lines, _row("nothing", ODD), ""])


def written() -> str:
    """Returns the page with the table as it has to be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{rest.partition(END)[2]}"


def _row(breaks: str, names: Iterable[str]) -> str:
    told = set(map(words, names))
    shortest = sorted(sorted(told, key=lambda name: (len(name), name))[:EXAMPLES])
    return f"| {breaks} | {len(told)} | {' · '.join(shortest)} |"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written())
    else:
        print(table())
