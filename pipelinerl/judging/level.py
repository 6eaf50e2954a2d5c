"""Writes and reads `RUN_DIR/judging.json`, the isolation level of a run's workers."""

import json
from pathlib import Path
from typing import TextIO

LEVEL_FILE = "judging.json"


def write_level(file: TextIO, isolation: str, why_no_stronger: str) -> None:
    """Writes the level to a file, which the caller opened before it dropped its privileges."""
    json.dump({"isolation": isolation, "why_no_stronger": why_no_stronger}, file)
    file.flush()


def isolation_of(run_dir: Path) -> str | None:
    """Returns the level, or None if the run has no judging service or its service is not ready."""
    try:
        return json.loads((run_dir / LEVEL_FILE).read_text())["isolation"]
    except (OSError, ValueError, KeyError):
        return None
