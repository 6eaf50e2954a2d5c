"""Gives access to one open run: its configuration, index, streams and tokenizer."""

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
from extensions.viewer.records.show import load_tokenizer, model_directory
from extensions.viewer.runs.answer_parser import AnswerParser
from extensions.viewer.runs.following import Following
from extensions.viewer.runs.own_directory import OwnDirectory
from extensions.viewer.runs.source import Source
from pipelinerl.config import saved_config
from pipelinerl.former_keys import with_moved_keys
from pipelinerl.report.prompt_messages import Part, parts_of, special_ids
from pipelinerl.streams import StreamError
from pipelinerl.streams.files import FileReader, FileStreams

STREAMS = {"train": "rollouts", "held-out": "eval_rollouts"}


class OpenRun:
    """An open run. Thread-safe. Raises DamagedConfigError if its configuration is damaged."""

    def __init__(self, name: str, run_dir: Path):
        self.name = name
        self.run_dir = run_dir
        self._inode = run_dir.stat().st_ino
        self._config_time = 0.0
        self._config: dict[str, Any] = {}
        _ = self.config  # may raise, so it comes before the directory is created
        self._directory = OwnDirectory(run_dir)
        self._source = Source(run_dir, self._directory)
        self.following = Following(run_dir, self._directory, self._source)
        self.lock = self.following.lock
        self._local = threading.local()
        self.following.start()

    @property
    def config(self) -> dict[str, Any]:
        """The run's configuration, read again when a resumption has changed it."""
        path = self.run_dir / "config.yaml"
        if path.exists() and (changed := path.stat().st_mtime) != self._config_time:
            self._config = saved_config(self.run_dir)
            self._config_time = changed
        return self._config

    @property
    def still_exists(self) -> bool:
        """True if the run directory has been neither deleted nor replaced since it was opened."""
        return self.run_dir.is_dir() and self.run_dir.stat().st_ino == self._inode

    def close(self) -> None:
        self.following.close()

    @property
    def queries(self) -> Queries:
        """The queries of the index, over a connection for each thread."""
        if not hasattr(self._local, "queries"):
            self.following.index_ready.wait()
            self._local.queries = Queries(open_to_read(self._directory.index))
        return self._local.queries

    @property
    def streams(self) -> FileStreams:
        return self._source.streams

    def reader(self, stream: str) -> FileReader:
        return self.streams.reader(stream)

    def slim_rollouts(self, offsets: Collection[int]) -> Iterator[tuple[int, SlimRollout]]:
        """Yields the training rollouts at these offsets without their tokens. Skips deleted records.

        Reads all records from the first to the last offset, so these should be close to each other.
        """
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

    @cached_property
    def special_ids(self) -> frozenset[int]:
        return special_ids(self.tokenizer) if self.tokenizer else frozenset()

    @cached_property
    def answer_parser(self) -> AnswerParser | None:
        """What parses answers, or None if the run has no tokenizer."""
        if self.tokenizer is None:
            return None
        model = with_moved_keys(self.config)["model"]
        return AnswerParser(model, str(model_directory(self.run_dir)), self.tokenizer)

    def parts(self, ids: Sequence[int]) -> Iterator[Part]:
        """Yields the text of tokens, or their ids if the run has no tokenizer."""
        if self.tokenizer is None:
            yield self.decode(ids), False
        else:
            yield from parts_of(ids, self.tokenizer, self.special_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, or their ids if the run has no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)
