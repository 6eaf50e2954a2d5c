"""How the workers of a run are confined: `RUN_DIR/judging.json`, which the service writes."""

import json
from pathlib import Path
from typing import TextIO

LEVEL_FILE = "judging.json"


def write_level(file: TextIO, isolation: str, why_no_stronger: str) -> None:
    """Writes the level to a file that was opened before the service gave up its rights."""
    json.dump({"isolation": isolation, "why_no_stronger": why_no_stronger}, file)
    file.flush()


def isolation_of(run_dir: Path) -> str | None:
    """Returns the level, or None for a run without a judging service, or before it is ready."""
    try:
        return json.loads((run_dir / LEVEL_FILE).read_text())["isolation"]
    except (OSError, ValueError, KeyError):
        return None
