"""Trackio: its local database (TRACKIO_DIR), in the project `pipelinerl`.

Each line has an identifier of its own, by which the database takes it once. The lines go to the database
and not through `trackio.log`. That stamps them with the present time, and drops what it cannot write.
"""

from datetime import UTC, datetime
from pathlib import Path

from trackio import fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from pipelinerl.view.lines import Line
from pipelinerl.view.progress import Progress
from pipelinerl.view.trackers.base import PROJECT


class Trackio:
    def __init__(self, run_dir: Path, config: dict):
        self._name = run_dir.name
        self._config: dict | None = config
        self.how_to_see = f"trackio show --project {PROJECT}"

    def is_there(self, progress: Progress) -> bool:
        return True  # its database is the user's, and takes each line once

    def open(self, progress: Progress) -> None:
        self._fragments = fragments.FragmentWriter()
        self._run_id = progress.run_id

    def write(self, lines: list[Line]) -> None:
        """Returns once the database has the lines, or the directory from which it will take them."""
        identifiers = [f"{self._run_id}:{line.process}:{line.end}:{line.time}" for line in lines]
        times = [datetime.fromtimestamp(line.time, UTC).isoformat() for line in lines]
        if utils.get_storage_mode() == "jsonl":  # its directory is on a network's file system
            self._write_fragment(lines, identifiers, times)
        else:
            SQLiteStorage.bulk_log(
                PROJECT,
                self._name,
                [line.numbers for line in lines],
                steps=[line.step for line in lines],
                timestamps=times,
                config=self._config,
                log_ids=identifiers,
                run_id=self._run_id,
            )
        self._config = None  # once is enough

    def close(self) -> None:
        """Nothing waits to be written."""

    def _write_fragment(self, lines: list[Line], identifiers: list[str], times: list[str]) -> None:
        records = [
            fragments.metric_record(
                {
                    "project": PROJECT,
                    "run": self._name,
                    "run_id": self._run_id,
                    "metrics": line.numbers,
                    "step": line.step,
                    "timestamp": time,
                    "config": self._config if line is lines[0] else None,
                    "log_id": identifier,
                }
            )
            for line, identifier, time in zip(lines, identifiers, times, strict=True)
        ]
        self._fragments.write_local(records)
