"""A run that the viewer has open: a thread keeps its index, its state and its metrics up to date."""

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from contracts.support.messages import one_line
from pipelinerl.config import DamagedConfigError, saved_config
from pipelinerl.streams import StreamError
from pipelinerl.streams.files import FileReader, FileStreams
from pipelinerl.streams.show import load_tokenizer
from pipelinerl.view.index import Index, Progress
from pipelinerl.view.index.queries import Queries
from pipelinerl.view.index.run_state import RunState
from pipelinerl.view.index.schema import open_to_read
from pipelinerl.view.index.slim import SlimRollout, rollout_decoder
from pipelinerl.view.run_end import RunEnd
from pipelinerl.view.runs.run_metrics import RunMetrics
from pipelinerl.view.runs.source import Source, view_directory
from pipelinerl.view.span_files import SpanFiles

log = logging.getLogger(__name__)

EVERY_S = 2.0  # between two looks at a run that somebody watches
POLL_S = 0.1  # while somebody waits
SELDOM_S = 5.0  # at one that has ended
WATCHED_S = 60.0  # after the last question about it
FIRST_LOOK_S = 5.0  # longest wait for what a small run has recorded
STREAMS = {"train": "rollouts", "held-out": "eval_rollouts"}


class OpenRun:
    """One run. Questions come from many threads; `lock` guards `state`, `metrics` and `spans`."""

    def __init__(self, name: str, run_dir: Path):
        self.name = name
        self.run_dir = run_dir
        self.config = saved_config(run_dir) if (run_dir / "config.yaml").exists() else {}
        self.lock = threading.RLock()
        self.state = RunState()
        self.metrics = RunMetrics(run_dir)
        self.spans = SpanFiles(run_dir)
        self.problem: str | None = None  # what keeps the viewer from reading all
        self.progress = Progress(0, 0, 0, 0)
        self.is_live = True
        self._directory = view_directory(run_dir)
        self._index_path = self._directory / "index.sqlite"
        self._end = RunEnd(run_dir)
        self._local = threading.local()
        self._asked_at = time.monotonic()
        self._asked = threading.Event()
        self._is_closed = False
        self._first_look = threading.Event()
        self._index_is_there = threading.Event()
        self._tokenizer: Tokenizer | None = None
        self._has_looked_for_tokenizer = False
        self._source = Source(run_dir, self._directory)
        self._thread = threading.Thread(target=self._follow, name=f"view {name}", daemon=True)
        self._thread.start()

    def asked(self) -> None:
        """Notes that somebody watches the run, and waits a little for the first look at it."""
        self._asked_at = time.monotonic()
        self._asked.set()
        if not self._first_look.wait(FIRST_LOOK_S):
            self._first_look.set()  # once is enough: the pages say how far the index is

    def wait_until_indexed(self) -> None:
        """Waits until all that was recorded at the call is in the index, or until that cannot be."""
        self._index_is_there.wait()
        while not self.progress.is_complete and self.problem is None:
            time.sleep(POLL_S)

    def close(self) -> None:
        self._is_closed = True
        self._asked.set()
        self._thread.join(10)

    @property
    def queries(self) -> Queries:
        """The index, through this thread's own connection."""
        if not hasattr(self._local, "queries"):
            self._index_is_there.wait()
            self._local.queries = Queries(open_to_read(self._index_path))
        return self._local.queries

    def slim_rollouts(self, offsets: Collection[int]) -> Iterator[tuple[int, SlimRollout]]:
        """Yields the training rollouts at these offsets, which lie close to each other, without their tokens.

        It yields no more where a record was deleted.
        """
        offset = min(offsets, default=0)
        last = max(offsets, default=-1)
        if last < offset:
            return
        with contextlib.suppress(StreamError):
            for payload, following in self.reader("rollouts").payloads(offset):
                if offset in offsets:
                    yield offset, rollout_decoder.decode(payload)
                if offset >= last:
                    return
                offset = following

    def reader(self, stream: str) -> FileReader:
        """Returns a reader of one of the run's streams, or of the copy of it."""
        return self._source.streams.reader(stream)

    @property
    def streams(self) -> FileStreams:
        """The run's streams, or the copy of them."""
        return self._source.streams

    @property
    def tokenizer(self) -> Tokenizer | None:
        with self.lock:
            if not self._has_looked_for_tokenizer:
                self._has_looked_for_tokenizer = True
                self._tokenizer = load_tokenizer(self.run_dir)
            return self._tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, or their ids where the run has no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    # --- following ------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            index = Index(self._index_path, self._source.streams, self.state)
            self._index_is_there.set()
            while not self._is_closed:
                self._look(index)
                self._first_look.set()
                self._wait()
            index.close()
        except Exception as error:  # of the disk, or of records that are damaged: the pages say it
            log.exception("%s is followed no more", self.run_dir)
            self.problem = f"the viewer does not follow this run any more: {one_line(error)}; start it again"
            self._first_look.set()
            self._index_is_there.set()

    def _look(self, index: Index) -> None:
        is_live = not self._end.has_come()  # before anything is read
        with self.lock:
            self.metrics.update()
            self.spans.update()
        try:
            self._source.update()
            self.problem = None
        except (StreamError, DamagedConfigError, OSError) as error:
            self.problem = one_line(error)
        while not self._is_closed and self._advance(index):
            pass
        self.problem = index.damage or self.problem
        self.is_live = is_live

    def _advance(self, index: Index) -> bool:
        with self.lock:
            is_more = index.advance()
            self.progress = index.progress
        return is_more

    def _wait(self) -> None:
        if time.monotonic() - self._asked_at > WATCHED_S:
            self._asked.clear()
            self._asked.wait()
            return
        time.sleep(EVERY_S if self.is_live else SELDOM_S)
