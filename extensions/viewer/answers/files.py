"""The files of a run: its configuration without secrets, its summary, its logs and checkpoints.

A file is found by its name in a listing, so names from requests are never parts of paths.
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

LARGEST = 200_000  # last bytes of a text that are shown
CONFIG = "config.yaml"
AT_THE_TOP = (CONFIG, "summary.json", "judging.json")


class NoSuchFileError(LookupError):
    """There is no file of this name."""


def files(run: OpenRun) -> Answer:
    """Returns the files, and the existing checkpoints."""
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
    """Returns the last LARGEST bytes of a file's text. Raises NoSuchFileError."""
    path = dict(shown_files(run.run_dir)).get(name)
    if path is None:
        raise NoSuchFileError(f"no file {name} is shown of this run")
    if name == CONFIG:
        shown = yaml.safe_dump(without_secrets(run.config), sort_keys=False, allow_unicode=True)
        return {"id": name, "bytes": len(shown), "text": shown, "is_cut": False}
    with path.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(size - LARGEST, 0))
        text = opened.read(LARGEST).decode(errors="replace")
    return {"id": name, "bytes": size, "text": text, "is_cut": size > LARGEST}


def shown_files(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yields the files by name. Links are left out, because they may lead out of the run."""
    if run_dir.is_symlink():
        return
    for name in AT_THE_TOP:
        path = run_dir / name
        if path.is_file() and not path.is_symlink():
            yield name, path
    logs = run_dir / "logs"
    if logs.is_dir() and not logs.is_symlink():
        for path in sorted(logs.iterdir()):
            if path.is_file() and not path.is_symlink():
                yield f"logs/{well_formed(path.name)}", path
