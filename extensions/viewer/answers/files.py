"""Builds the answers about a run's files: configuration without secrets, summary, logs and checkpoints.

A requested name is looked up in the listing of files. It never becomes part of a path.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import yaml

from extensions.viewer.answers.overview import Answer
from extensions.viewer.json_text import well_formed
from extensions.viewer.runs.opened import OpenRun
from pipelinerl.report.secrets import without_secrets
from pipelinerl.training.checkpoints import Checkpoints

SHOWN_BYTES = 200_000  # at the end of a text
CONFIG = "config.yaml"
TOP_LEVEL_FILES = (CONFIG, "summary.json", "judging.json")


class NoSuchFileError(LookupError):
    """The viewer shows no file of this name."""


def files(run: OpenRun) -> Answer:
    """Returns the files that the viewer shows, and the checkpoints that still exist."""
    with run.lock:
        checkpoints = list(run.following.state.checkpoints)
    kept = {position.version for position in Checkpoints(run.run_dir).complete_checkpoints()}
    return {
        "files": [
            {"id": name, "bytes": path.stat().st_size, "modified_at": path.stat().st_mtime}
            for name, path in shown_files(run.run_dir)
        ],
        "trace": f"api/runs/{quote(run.name)}/trace.json.gz",
        "checkpoints": [
            {"version": saved.version, "saved_at": saved.at or None}
            for saved in checkpoints
            if saved.version in kept
        ],
    }


def file(run: OpenRun, name: str) -> Answer:
    """Returns the last SHOWN_BYTES of a file. Raises NoSuchFileError."""
    path = dict(shown_files(run.run_dir)).get(name)
    if path is None:
        raise NoSuchFileError(f"no file {name} is shown of this run")
    if name == CONFIG:
        shown = yaml.safe_dump(without_secrets(run.config), sort_keys=False, allow_unicode=True)
        return {"id": name, "bytes": len(shown), "text": shown, "is_cut": False}
    with path.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(size - SHOWN_BYTES, 0))
        text = opened.read(SHOWN_BYTES).decode(errors="replace")
    return {"id": name, "bytes": size, "text": text, "is_cut": size > SHOWN_BYTES}


def shown_files(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yields the name and path of each file to show. Skips symbolic links, which may lead out of the run."""
    if run_dir.is_symlink():
        return
    for name in TOP_LEVEL_FILES:
        path = run_dir / name
        if path.is_file() and not path.is_symlink():
            yield name, path
    logs = run_dir / "logs"
    if logs.is_dir() and not logs.is_symlink():
        for path in sorted(logs.iterdir()):
            if path.is_file() and not path.is_symlink():
                yield f"logs/{well_formed(path.name)}", path
