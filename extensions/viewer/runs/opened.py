"""A run that the viewer has open: its state and its records."""

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from extensions.viewer.index.queries import Queries
from extensions.viewer.index.schema import open_to_read
from extensions.viewer.index.slim import SlimRollout, rollout_decoder
from extensions.viewer.records.show import load_tokenizer
from extensions.viewer.runs.following import Following
from extensions.viewer.runs.own_directory import OwnDirectory
from extensions.viewer.runs.source import Source
from pipelinerl.config import saved_config
from pipelinerl.streams import StreamError
from pipelinerl.streams.files import FileReader, FileStreams

STREAMS = {"train": "rollouts", "held-out": "eval_rollouts"}


class OpenRun:
    """One run, used by many threads. Raises DamagedConfigError if its configuration is damaged."""

    def __init__(self, name: str, run_dir: Path):
        self.name = name
        self.run_dir = run_dir
        self._inode = run_dir.stat().st_ino
        self._config_time = 0.0
        self._config: dict[str, Any] = {}
        _ = self.config  # raises before the run's `view` directory is created
        self._directory = OwnDirectory(run_dir)
        self._source = Source(run_dir, self._directory)
        self.following = Following(run_dir, self._directory, self._source)
        self.lock = self.following.lock
        self._local = threading.local()
        self.following.start()

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration, read anew because a resumption may change it."""
        path = self.run_dir / "config.yaml"
        if path.exists() and (changed := path.stat().st_mtime) != self._config_time:
            self._config = saved_config(self.run_dir)
            self._config_time = changed
        return self._config

    @property
    def is_there(self) -> bool:
        """The directory is still the one that was opened."""
        return self.run_dir.is_dir() and self.run_dir.stat().st_ino == self._inode

    def close(self) -> None:
        self.following.close()

    @property
    def queries(self) -> Queries:
        """The index, through a connection of this thread."""
        if not hasattr(self._local, "queries"):
            self.following.index_is_there.wait()
            self._local.queries = Queries(open_to_read(self._directory.index))
        return self._local.queries

    @property
    def streams(self) -> FileStreams:
        """The run's streams, or their copy."""
        return self._source.streams

    def reader(self, stream: str) -> FileReader:
        """Returns a reader of one of the run's streams, or of its copy."""
        return self.streams.reader(stream)

    def slim_rollouts(self, offsets: Collection[int]) -> Iterator[tuple[int, SlimRollout]]:
        """Yields the training rollouts at these nearby offsets, without tokens. Skips deleted records."""
        reader = self.reader("rollouts")
        left = [offset for offset in offsets if offset >= reader.first_offset()]
        offset = min(left, default=0)
        last = max(left, default=-1)
        if last < offset:
            return
        with contextlib.suppress(StreamError):
            for payload, following in reader.payloads(offset):
                if offset in offsets:
                    yield offset, rollout_decoder.decode(payload)
                if offset >= last:
                    return
                offset = following

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        return load_tokenizer(self.run_dir)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, or their ids if the run has no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)
