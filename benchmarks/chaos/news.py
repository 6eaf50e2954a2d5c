"""Reads the records of one launch so far: of its servers, its restarts and its steps."""

from pathlib import Path

from benchmarks.run_processes import is_stopped, redis_of
from contracts.records import PhaseBegan, Record, ServerJoined, StepClosed, WeightsPublished
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.config import ResolvedStreams, saved_streams
from pipelinerl.streams import StreamError, Streams
from pipelinerl.streams.files import FileStreams

NAMES = ("launcher_events", "trainer_events")


class News:
    """Reads the records of a running run. It starts no Redis server, and does not wait for a missing one."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._streams: Streams | None = None
        self._offsets = dict.fromkeys(NAMES, 0)
        self._records: dict[str, list[Record]] = {name: [] for name in NAMES}

    def read(self) -> None:
        """Reads records written since the last call, if they can be read now."""
        try:
            if self._streams is None:
                self._streams = self._open()
            if self._streams is None or not self._can_answer():
                return
            for name in NAMES:
                for entry in self._streams.reader(name).read(self._offsets[name], timeout_s=0):
                    self._offsets[name] = entry.next_offset
                    self._records[name].append(entry.record)
        except (StreamError, OSError):
            self._streams = None  # the Redis server is being restarted

    def launcher_since(self, since: float) -> list[Record]:
        """Returns the launcher's records after a time."""
        return [record for record in self._records["launcher_events"] if record.at > since]

    def steps_since(self, since: float) -> list[StepClosed]:
        """Returns the steps that closed after a time."""
        trained = self._records["trainer_events"]
        return [record for record in trained if isinstance(record, StepClosed) and record.at > since]

    def phases_since(self, since: float) -> list[str]:
        """Returns the phases that began after a time, in a run that takes turns."""
        return [
            r.phase for r in self._records["trainer_events"] if isinstance(r, PhaseBegan) and r.at > since
        ]

    def serves_since(self, name: str, since: float) -> bool:
        """Returns whether the server of this name received weights after a time."""
        joined = self._records["launcher_events"]
        urls = [record.url for record in joined if isinstance(record, ServerJoined) and record.name == name]
        published = [r for r in self._records["trainer_events"] if isinstance(r, WeightsPublished)]
        return any(urls[-1] in record.servers for record in published if urls and record.at > since)

    def _open(self) -> Streams | None:
        path = self._run_dir / "config.yaml"
        if not path.exists():
            return None
        streams = saved_streams(self._run_dir)
        if streams.target == ResolvedStreams().target:
            return FileStreams(self._run_dir / "streams")
        url = self._run_dir / "redis" / "url"
        return RedisStreams(url.read_text(), streams.run) if url.exists() else None

    def _can_answer(self) -> bool:
        if isinstance(self._streams, FileStreams):
            return True
        server = redis_of(self._run_dir)
        return server is not None and not is_stopped(server)
