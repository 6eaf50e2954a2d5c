"""Weights & Biases: offline, in `RUN_DIR/trackers/wandb/`, unless WANDB_MODE says otherwise.

Only the process that began an offline run can write its file, and if it is killed, a part of the file is
lost. So the next process writes the run again, from the first line of the metrics, and deletes the old file.
An online run is resumed by its identifier.
"""

import os
import shlex
import shutil
from pathlib import Path

import wandb

from extensions.viewer.lines import Line
from extensions.viewer.progress import Progress
from extensions.viewer.trackers.base import PROJECT
from extensions.viewer.trackers.wandb_file import rows_of
from pipelinerl.errors import PlanError

ONLINE = "online"  # the mark of an online run


class Wandb:
    def __init__(self, run_dir: Path, config: dict):
        self._run_dir = run_dir
        self._config = config
        self._rows = 0  # number of rows written to an offline run
        if os.environ.get("WANDB_MODE") == "disabled":
            raise PlanError("WANDB_MODE=disabled writes nowhere: unset it, or leave out wandb")
        self.how_to_see = "wandb sync " + " ".join(shlex.quote(str(path)) for path in self._offline_runs())

    def _offline_runs(self) -> list[Path]:
        return [*(self._run_dir / "trackers" / "wandb").glob("offline-run-*")]

    def is_there(self, progress: Progress) -> bool:
        return progress.mark == ONLINE or bool(self._offline_runs())

    def open(self, progress: Progress) -> None:
        """Begins an offline run from the first line, or resumes an online run."""
        for unfinished in self._offline_runs():
            shutil.rmtree(unfinished)
        self._run = _begun(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=progress.run_id,
            name=self._run_dir.name,
            resume="allow",
            mode=os.environ.get("WANDB_MODE", "offline"),
            dir=self._run_dir / "trackers",
            config=self._config,
            # This process is not a part of the run, so W&B must not record its output and load.
            settings=wandb.Settings(console="off", disable_git=True, silent=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="step")
        if progress.mark != ONLINE or self._mark != ONLINE:
            progress.offsets = {}
        progress.mark = self._mark
        directory = Path(self._run.dir).parent
        self.how_to_see = f"wandb sync {shlex.quote(str(directory))}" if self._run.offline else self._run.url
        self._rows = 0

    def write(self, lines: list[Line]) -> str | None:
        for line in lines:
            self._rows += 1
            self._run.log({"step": line.step, "_timestamp": line.time, **line.numbers})
        return self._mark

    def close(self) -> None:
        """Waits until all lines are stored. Raises PlanError if an offline file lacks some: a full disk."""
        offline = self._run.offline
        self._run.finish()
        if not offline:
            return
        wandb.teardown()  # W&B's own process writes the rest of the file when it ends
        (path,) = Path(self._run.dir).parent.glob("*.wandb")
        if (kept := rows_of(path)) < self._rows:
            raise PlanError(
                f"W&B has kept {kept} of {self._rows} lines in {path}; is its disk full? "
                "The same command writes all of them anew"
            )

    @property
    def _mark(self) -> str | None:
        return None if self._run.offline else ONLINE


def _begun(**options: object) -> wandb.Run:
    """Begins or resumes a run. Raises PlanError for an error that the user must fix, according to W&B."""
    try:
        return wandb.init(**options)
    except wandb.errors.UsageError as error:
        raise PlanError(f"wandb: {error}") from error
