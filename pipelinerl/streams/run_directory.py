"""Checks that a path given by the user is the directory of a run, before any stream is opened."""

from pathlib import Path


class InvalidInputError(Exception):
    """The user asked for something that does not exist. The message is the line that the user sees."""


def check_run(run_dir: Path) -> None:
    """Raises InvalidInputError unless a run has begun in `run_dir`."""
    if not (run_dir / "streams").is_dir() and not (run_dir / "config.yaml").is_file():
        if run_dir.is_dir():
            raise InvalidInputError(
                f"{run_dir} is not the directory of a run: it has no streams/ and no config.yaml"
            )
        parent = run_dir.parent
        siblings = (
            sorted(entry.name for entry in parent.iterdir() if entry.is_dir()) if parent.is_dir() else []
        )
        known = f"; in {parent} there are: {', '.join(siblings) or 'no directories'}"
        raise InvalidInputError(f"there is no run directory {run_dir}{known if parent.is_dir() else ''}")
