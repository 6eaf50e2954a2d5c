"""TensorBoard: one event file, `RUN_DIR/tensorboard/events.out.tfevents.pipelinerl`.

The mark is the size of the file. Data beyond it, which a killed process wrote, are truncated.
"""

import os
import shlex
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from extensions.viewer.lines import Line
from extensions.viewer.progress import Progress

NAME = "events.out.tfevents.pipelinerl"
VERSION = "brain.Event:2"  # since this version, readers keep all steps, even if they decrease


class TensorBoard:
    def __init__(self, run_dir: Path, config: dict):
        self._path = run_dir / "tensorboard" / NAME
        self.how_to_see = f"tensorboard --logdir {shlex.quote(str(self._path.parent))}"

    def is_there(self, progress: Progress) -> bool:
        return self._path.exists()

    def open(self, progress: Progress) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        size = self._path.stat().st_size
        if not isinstance(progress.mark, int) or size < progress.mark:  # deleted, or lost with the power
            progress.offsets = {}
            progress.mark = 0
        self._file.truncate(progress.mark)
        if progress.mark == 0:
            self._records.write(Event(file_version=VERSION).SerializeToString())
            progress.mark = self._size()

    def write(self, lines: list[Line]) -> int:
        for line in lines:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in line.numbers.items()]
            event = Event(wall_time=line.time, step=line.step, summary=Summary(value=values))
            self._records.write(event.SerializeToString())
        return self._size()

    def close(self) -> None:
        self._file.close()

    def _size(self) -> int:
        """Syncs the file to the disk, and returns its size."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._path.stat().st_size
