"""Cuts off the end of a stream's file, as a loss of power could."""

from operator import attrgetter
from pathlib import Path

from pipelinerl.streams.base import Entry
from pipelinerl.streams.events import resumptions
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.segments import segment_path, segment_starts

CUT = ("actor_events", "trainer_events", "rollouts")
LOST = 7  # bytes cut from the newest record


def cut_tail(run_dir: Path) -> list[str]:
    """Damages each stream's newest record if it was not synced. Returns these streams.

    The run must have ended.
    """
    return [name for name in CUT if _cut(run_dir, name)]


def _cut(run_dir: Path, name: str) -> bool:
    newest = _newest(FileStreams(run_dir / "streams"), name)
    if newest is None or _written_at(newest) <= _synced_at(run_dir):
        return False
    directory = run_dir / "streams" / name
    path = segment_path(directory, segment_starts(directory)[-1])
    with path.open("rb+") as file:
        file.truncate(max(path.stat().st_size - LOST, 0))
    return True


def _newest(streams: FileStreams, name: str) -> Entry | None:
    reader = streams.reader(name)
    entries = reader.read(reader.first_offset(), timeout_s=0)
    return max(entries, key=attrgetter("next_offset"), default=None)


def _written_at(entry: Entry) -> float:
    """Returns the time of a record, or 0 if it has none."""
    return getattr(entry.record, "at", 0.0) or getattr(entry.record, "finished_at", 0.0)


def _synced_at(run_dir: Path) -> float:
    """Returns when the streams were last synced to disk: at a checkpoint, or when the run resumed."""
    saved = [path.stat().st_mtime for path in run_dir.glob("checkpoints/*/position.json")]
    resumed = [record.at for record in resumptions(FileStreams(run_dir / "streams"))]
    return max([*saved, *resumed], default=0.0)
