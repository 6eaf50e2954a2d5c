"""Follows a run in a thread, which updates an index, a state, metrics and spans from its records."""

import logging
import threading
import time
from pathlib import Path

from contracts.support.messages import one_line
from extensions.viewer.index import Index, Progress
from extensions.viewer.index.run_state import RunState
from extensions.viewer.run_end import RunEnd
from extensions.viewer.runs.own_directory import OwnDirectory
from extensions.viewer.runs.run_metrics import RunMetrics
from extensions.viewer.runs.source import Source
from extensions.viewer.span_files import SpanFiles
from pipelinerl.errors import PlanError
from pipelinerl.streams import StreamError

log = logging.getLogger(__name__)

EVERY_S = 2.0  # between two updates of a live run
SELDOM_S = 5.0  # between two updates of a run that has ended
WATCHED_S = 60.0  # for how long a run is followed after its last request
FIRST_UPDATE_S = 5.0  # longest wait of the first request, for the first update
END_S = 10.0  # longest wait for the thread's end


class Following:
    """The thread and the data that it updates. `lock` guards `state`, `metrics` and `spans`."""

    def __init__(self, run_dir: Path, directory: OwnDirectory, source: Source):
        self.lock = threading.RLock()
        self.state = RunState()
        self.metrics = RunMetrics(run_dir)
        self.spans = SpanFiles(run_dir)
        self.problem: str | None = None  # why the viewer could not read everything
        self.progress = Progress(0, 0, 0, 0, is_complete=False)
        self.is_live = True
        self.index_is_there = threading.Event()
        self._run_dir = run_dir
        self._directory = directory
        self._source = source
        self._end = RunEnd(run_dir)
        self._asked_at = time.monotonic()
        self._is_asked = threading.Event()
        self._is_closed = threading.Event()
        self._has_read = threading.Event()  # the first update has ended, or failed
        self._is_patient = True
        self._thread = threading.Thread(target=self._follow, name=f"view {run_dir.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed.is_set()

    def asked(self) -> None:
        """Records a request about the run. The first one waits up to FIRST_UPDATE_S for the first update."""
        self._asked_at = time.monotonic()
        self._is_asked.set()
        if self._is_patient:
            self._is_patient = False
            self._has_read.wait(FIRST_UPDATE_S)

    def wait_until_read(self) -> None:
        """Waits until all records have been read, or reading has failed."""
        self._has_read.wait()

    def close(self) -> None:
        self._is_closed.set()
        self._is_asked.set()
        self._thread.join(END_S)

    def _follow(self) -> None:
        try:
            index = Index(self._directory.index, self._source.streams, self.state)
            self.index_is_there.set()
            while not self.is_closed:
                self._update(index)
                self._has_read.set()
                self._wait()
            index.close()
        except Exception as error:  # e.g. of the disk, or damaged records: shown on the pages
            log.exception("%s is followed no more", self._run_dir)
            self.problem = f"the viewer does not follow this run any more: {one_line(error)}; start it again"
        finally:
            self.index_is_there.set()
            self._has_read.set()
            self._source.close()
            self._directory.close()

    def _update(self, index: Index) -> None:
        is_live = not self._end.has_come()  # before anything is read
        with self.lock:
            self.metrics.update()
            self.spans.update()
        problem = None
        try:
            self._source.update()
        except (StreamError, PlanError, OSError) as error:
            problem = one_line(error)
        is_more = True
        while is_more and not self.is_closed:
            is_more = index.advance(self.lock)
            self.progress = index.progress
        self.problem = index.damage or problem
        self.is_live = is_live

    def _wait(self) -> None:
        self._is_asked.clear()
        if self.is_closed:
            return
        if time.monotonic() - self._asked_at > WATCHED_S:
            self._is_asked.wait()
        else:
            self._is_closed.wait(EVERY_S if self.is_live else SELDOM_S)
