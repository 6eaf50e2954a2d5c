"""Trackio: its local database (TRACKIO_DIR), in the project `pipelinerl`.

Each line has its own identifier, so the database stores it only once. The lines are written to the database
directly, because `trackio.log` stamps them with the current time, and drops lines that it cannot write.
"""

from datetime import UTC, datetime
from pathlib import Path

from trackio import fragments, utils
from trackio.sqlite_storage import SQLiteStorage

from extensions.viewer.lines import Line
from extensions.viewer.progress import Progress
from extensions.viewer.trackers.base import PROJECT


class Trackio:
    def __init__(self, run_dir: Path, config: dict):
        self._name = run_dir.name
        self._config: dict | None = config
        self.how_to_see = f"trackio show --project {PROJECT}"

    def is_there(self, progress: Progress) -> bool:
        return True  # the database is the user's, and stores each line only once

    def open(self, progress: Progress) -> None:
        self._fragments = fragments.FragmentWriter()
        self._run_id = progress.run_id

    def write(self, lines: list[Line]) -> None:
        """Writes the lines to the database, or to the directory from which it imports them."""
        identifiers = [f"{self._run_id}:{line.process}:{line.end}:{line.time}" for line in lines]
        times = [datetime.fromtimestamp(line.time, UTC).isoformat() for line in lines]
        if utils.get_storage_mode() == "jsonl":  # its directory is on a network file system
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
        self._config = None  # only the first write includes it

    def close(self) -> None:
        """Does nothing, because `write` has stored all lines."""

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
