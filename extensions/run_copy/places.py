"""Where the copy of a run is, and whether it is the run's own.

A copy has a file that names its run. A copy from which a run was resumed is a run of its own: no other writes
there any more.
"""

from pathlib import Path

ORIGINAL = "copy_of"  # the file of a copy that names its run
OF_A_RUN = "heartbeats"  # a directory that a run makes, and that is not copied


def copy_in(place: Path, run_dir: Path) -> Path:
    """Returns the directory of the run's copy."""
    return place / run_dir.name


def why_not(run_dir: Path, copy: Path, is_resumed: bool = True) -> str | None:
    """Returns why the run cannot be copied there; None if it can."""
    other = "set observers.copy.to to another directory"
    if copy == run_dir and not is_resumed:
        return f"{run_dir} is the run itself; {other}"
    if copy == run_dir:
        return None  # resumed where it was copied to, and copied no further
    if copy.is_relative_to(run_dir) or run_dir.is_relative_to(copy):
        return f"a run is not copied into its own directory, or around it; {other}"
    if not copy.exists():
        return None
    if not is_resumed:
        return f"{copy} exists, and is no copy of this new run; {other}"
    named = copy / ORIGINAL
    if not named.is_file() or named.read_text() != str(run_dir):
        return f"{copy} is no copy of {run_dir}; {other}"
    if (copy / OF_A_RUN).exists():
        return f"{copy} was resumed, and is a run of its own; {other}"
    return None
