"""The observer that copies a run to a second place (`observers=copy`)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extensions.run_copy.places import copy_in, why_not
from pipelinerl.config import FILES
from pipelinerl.observers import PYTHON, Observer


class RunCopy(Observer):
    """Copies the run to TO/NAME_OF_THE_RUN_DIRECTORY after each checkpoint and at the end."""

    name = "copy"
    repeated = "makes the copy of what is there"
    with_run = ("--with-run",)

    def __init__(self, to: str | None):
        if not to:
            raise ValueError("observers=copy needs a second place; add observers.copy.to=DIRECTORY")
        self._to = Path(to).resolve()

    def command(self, run_dir: Path) -> tuple[str, ...]:
        return (*PYTHON, "extensions.run_copy", str(run_dir), "--to", str(self._to))

    def refusal(self, config: Mapping[str, Any], run_dir: Path, is_resumed: bool) -> str | None:
        if config["checkpoint"]["every"] is None:
            return "a run without checkpoints is never copied; set checkpoint.every"
        if config["streams"]["_target_"] != FILES:
            return "only streams in files are copied; set streams=files"
        there = next(parent for parent in (self._to, *self._to.parents) if parent.exists())
        if not (there.is_dir() and os.access(there, os.W_OK)):
            return f"{there} is no directory that can be written to; set observers.copy.to to another"
        copy = copy_in(self._to, run_dir)
        if copy == run_dir and is_resumed:
            print(f"warning: {run_dir} is itself the copy; observers.copy.to=DIRECTORY copies it further")
        return why_not(run_dir, copy, is_resumed)
