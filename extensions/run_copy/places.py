"""Where the copy of a run is, and whether it is the run's own.

A copy has a file that names its run, and its run has a file that names its copies. A copy that a launcher has
opened is a run of its own: no other writes there any more.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from contracts.support.files import write_atomically
from pipelinerl.paths import OWNER_ALONE

ORIGINAL = "copy_of"  # the file of a copy that names its run
COPIES = "copied_to"  # the file of a run that names its copies, a line each
MARKS = (ORIGINAL, COPIES)
LOCK = Path("streams", "launcher_events", "writer.lock")  # that a launcher holds
FIRST = Path("streams", "launcher_events", "00000000000000000000.records")
FIRST_BYTES = 32  # of the launcher's first record, with its checksum: no two runs have the same
OTHER = "set observers.copy.to to another directory"


def copy_in(place: Path, run_dir: Path) -> Path:
    """Returns the directory of the run's copy."""
    return place / run_dir.name


def mark(run_dir: Path, copy: Path) -> None:
    """Makes the copy's directory, and marks it as that of the run."""
    if not (copy / ORIGINAL).exists():
        copy.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
        write_atomically(copy / ORIGINAL, _identity(run_dir))
    copies = _copies_of(run_dir)
    if str(copy) not in copies:
        with suppress(OSError):  # the run's disk may be full, which is when a copy is wanted
            write_atomically(run_dir / COPIES, "".join(f"{each}\n" for each in [*copies, copy]))


def why_not(run_dir: Path, copy: Path, is_resumed: bool = True) -> str | None:
    """Returns why the run cannot be copied there; None if it can."""
    if copy == run_dir:  # resumed where it was copied to, it is copied no further
        return None if is_resumed else f"{run_dir} is the run itself; {OTHER}"
    if copy.is_relative_to(run_dir) or run_dir.is_relative_to(copy):
        return f"a run is not copied into its own directory, or around it; {OTHER}"
    if not copy.exists() or not any(copy.iterdir()):
        if is_resumed and str(copy) in _copies_of(run_dir):
            return f"{copy} is gone; is its disk there? Take it out of {run_dir / COPIES} to make it anew"
        return None
    if not is_resumed:
        return f"{copy} exists, and is no copy of this new run; {OTHER}"
    named = copy / ORIGINAL
    if not named.is_file() or named.read_text() != _identity(run_dir):
        return f"{copy} is no copy of {run_dir}; {OTHER}"
    if (copy / LOCK).exists() and (copy / LOCK).stat().st_size:  # a launcher writes its process id there
        return f"{copy} was resumed, and is a run of its own; {OTHER}"
    return None


def _copies_of(run_dir: Path) -> list[str]:
    named = run_dir / COPIES
    return named.read_text().splitlines() if named.is_file() else []


def _identity(run_dir: Path) -> str:
    """Returns the run's directory and the beginning of its first record."""
    first = run_dir / FIRST
    begin = first.read_bytes()[:FIRST_BYTES] if first.is_file() else b""
    return json.dumps({"run": str(run_dir), "begins": hashlib.sha256(begin).hexdigest()})
