"""Finds what a run's processes warned of last, in their logs."""

import re
import time
from pathlib import Path

from contracts.support.messages import printable

NEWEST_BYTES = 65536  # of each log that are read
WARNING = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ \S+ (?:WARNING|ERROR) (.+)$", re.MULTILINE)
MOST = 300  # characters of a warning


def newest_warning(run_dir: Path, within_s: float) -> str | None:
    """Returns time, log and text of the newest warning of the last `within_s` seconds, or None."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - within_s))
    found: list[tuple[str, str, str]] = []
    for log in (run_dir / "logs").glob("*.log"):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - NEWEST_BYTES))
            text = file.read().decode(errors="replace")
        found += [(at, log.name, said[:MOST]) for at, said in WARNING.findall(text)[-1:] if at >= since]
    return printable("at {} logs/{} warned: {}".format(*max(found))) if found else None
