"""Where the copy of a run is, and whether it is the run's own.

A copy has a file that names its run, and its run has a file that names the copy. A copy from which a run was
resumed is a run of its own: no other writes there any more.
"""

import hashlib
import json
from pathlib import Path

from contracts.support.files import write_atomically
from pipelinerl.paths import OWNER_ALONE

ORIGINAL = "copy_of"  # the file of a copy that names its run
COPY = "copied_to"  # the file of a run that names its copy
OF_A_RUN = "heartbeats"  # a directory that a run makes, and that is not copied
MARKS = (ORIGINAL, COPY, OF_A_RUN)
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
    write_atomically(run_dir / COPY, str(copy))


def check_own(run_dir: Path, copy: Path, error: type[Exception]) -> None:
    """Raises the error if the run cannot be copied there, or its copy is gone."""
    if reason := why_not(run_dir, copy):
        raise error(reason)
    named = run_dir / COPY
    if not copy.exists() and named.is_file() and named.read_text() == str(copy):
        raise error(f"{copy} is gone; is its disk there? Remove {named} to make it anew")


def why_not(run_dir: Path, copy: Path, is_resumed: bool = True) -> str | None:
    """Returns why the run cannot be copied there; None if it can."""
    if copy == run_dir and not is_resumed:
        return f"{run_dir} is the run itself; {OTHER}"
    if copy == run_dir:
        return None  # resumed where it was copied to, and copied no further
    if copy.is_relative_to(run_dir) or run_dir.is_relative_to(copy):
        return f"a run is not copied into its own directory, or around it; {OTHER}"
    if not copy.exists():
        return None
    if not is_resumed:
        return f"{copy} exists, and is no copy of this new run; {OTHER}"
    named = copy / ORIGINAL
    if not named.is_file() or named.read_text() != _identity(run_dir):
        return f"{copy} is no copy of {run_dir}; {OTHER}"
    if (copy / OF_A_RUN).exists():
        return f"{copy} was resumed, and is a run of its own; {OTHER}"
    return None


def _identity(run_dir: Path) -> str:
    """Returns the run's directory and the beginning of its first record."""
    first = run_dir / FIRST
    begin = first.read_bytes()[:FIRST_BYTES] if first.is_file() else b""
    return json.dumps({"run": str(run_dir), "begins": hashlib.sha256(begin).hexdigest()})
