"""Checks that a path from the user is a run directory."""

from pathlib import Path


class InvalidInputError(Exception):
    """The user's input names something that does not exist. The message is printed as it is."""


def check_run(run_dir: Path) -> None:
    """Raises InvalidInputError unless `run_dir` is the directory of a run."""
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
