"""Completes checkpoints while training continues, on rank 0."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from contracts.records import CheckpointSaved
from contracts.support.files import is_disk_full
from contracts.trainer import SaveHandle
from pipelinerl.training.checkpoints import Checkpoints, Position

log = logging.getLogger(__name__)


class CheckpointSaver:
    """A saver of one checkpoint at a time. `poll` and `finish` raise errors of writing.

    A checkpoint for which the disk has no space is skipped, and earlier ones are kept.

    newest: version of the newest complete checkpoint.
    wait_for: waits until one of the futures is done.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        keep: int,
        announce: Callable[[CheckpointSaved], object],
        sync_streams: Callable[[], None],
        newest: int = 0,
        wait_for: Callable[[Sequence[Future]], object] = wait,
    ):
        self.newest = newest
        self._wait_for = wait_for
        self._sync_streams = sync_streams
        self._checkpoints = checkpoints
        self._keep = keep
        self._announce = announce
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[CheckpointSaved | None] | None = None

    def begin(self, position: Position, handle: SaveHandle) -> None:
        self._saving = self._thread.submit(self._complete_or_leave_out, position, handle)

    def _complete_or_leave_out(self, position: Position, handle: SaveHandle) -> CheckpointSaved | None:
        try:
            return self._complete(position, handle)
        except OSError as error:
            if not is_disk_full(error):
                raise
            log.warning("version %d is not saved: there is no room (%s)", position.version, error)
            self._checkpoints.leave_out(position.version)
            return None

    def _complete(self, position: Position, handle: SaveHandle) -> CheckpointSaved:
        handle.wait()
        self._sync_streams()
        oldest = self._checkpoints.complete(position, self._keep)
        return CheckpointSaved(version=position.version, rollouts_offset=oldest.rollouts_offset)

    def poll(self) -> None:
        """Announces a checkpoint that has been completed, in the caller's thread, which owns the streams."""
        if self._saving and self._saving.done():
            self.finish()

    def finish(self) -> None:
        """Waits for the checkpoint that is being written."""
        if self._saving:
            self._wait_for([self._saving])
            saved = self._saving.result()
            self._saving = None
            if saved:
                self.newest = saved.version
                self._announce(saved)
