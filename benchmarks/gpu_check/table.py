"""The table of outcomes in Markdown, in a file that holds a section for each machine, day and commit."""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.outcomes import Outcome

HEAD = "| part | result | seconds | measured |\n|---|---|---|---|\n"
ROW = re.compile(r"^\| `([^`]+)` \|.*$", re.MULTILINE)


def row(outcome: Outcome) -> str:
    """Returns the line of one part."""
    measured = "<br>".join(line.replace("|", "/").replace("\n", " ") for line in outcome.lines)
    return f"| `{outcome.part}` | {outcome.state} | {outcome.seconds:.0f} | {measured} |"


def section(title: str, versions: str, rows: Sequence[str]) -> str:
    """Returns a heading, the versions and a table."""
    return f"### {title}\n\n{versions}\n\n{HEAD}" + "".join(f"{line}\n" for line in rows)


def put(text: str, title: str, versions: str, outcome: Outcome) -> str:
    """Returns the file's text with this outcome in the section of that title. It replaces an earlier one."""
    before, heading, rest = text.partition(f"### {title}\n")
    if not heading:
        gap = "\n" if text else ""
        return f"{text}{gap}{section(title, versions, [row(outcome)])}"
    own, next_heading, after = rest.partition("\n### ")
    rows = {found[1]: found[0] for found in ROW.finditer(own)}
    rows[outcome.part] = row(outcome)
    gap = next_heading and f"\n{next_heading.strip()} "
    return f"{before}{section(title, versions, list(rows.values()))}{gap}{after}"


def make_writable(file: Path) -> None:
    """Makes the file and its directory where they are missing. Raises OSError where it cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.open("a").close()


def record(file: Path, title: str, versions: str, outcome: Outcome) -> None:
    """Writes an outcome into the file."""
    file.write_text(put(file.read_text(), title, versions, outcome))
