"""Publishes written versions in a thread, so that training does not wait for hashing and signing.

At most one version waits; a newer one replaces it. If the disk is full, the version is discarded, and the
caller writes it again or writes a newer one.
"""

import errno
import logging
import threading
import time
from collections.abc import Set

from contracts.support.files import DISK_FULL
from extensions.stored_weights.store.written import Written
from extensions.stored_weights.trainer.stored import EPOCH, VersionStore
from pipelinerl.errors import GaveUpError

log = logging.getLogger(__name__)
SIGN_EVERY_S = 30.0  # interval at which `latest.json` is signed again while there is no newer version
KEEP_S = 60.0  # time for which older versions are kept, because servers may be pulling them
PASSING = (*DISK_FULL, errno.EIO, errno.ESTALE, errno.EBUSY, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_passing(error: BaseException) -> bool:
    """Returns True if a retry of a write may succeed later, e.g. after ENOSPC."""
    return isinstance(error, OSError) and error.errno in PASSING


class Packer:
    """Publishes one version after another.

    keep: number of newest versions that the store keeps.
    digests: published version -> digest.
    newest: last published version, or -1.
    failures: number of versions that were not written because of a full disk.
    seconds: duration of the last publication. ended_at: monotonic time of its end.
    """

    def __init__(self, store: VersionStore, keep: int):
        self._store = store
        self._keep = keep
        self._changed = threading.Condition()
        self._waiting: Written | None = None
        self._pulled: Set[int] = frozenset()  # versions that servers are pulling
        self._current: Written | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._is_logged = False  # True if a failure was logged since the last success
        self.digests: dict[int, str] = {}
        self.newest = -1
        self.failures = 0
        self.seconds = 0.0
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True, name="packer")
        self._thread.start()

    def put(self, written: Written, pulled: Set[int] = frozenset()) -> None:
        """Queues a version for publication. Discards the queued one, if there is one.

        pulled: versions that servers are pulling, which are kept.
        """
        with self._changed:
            replaced = self._waiting
            self._waiting = written
            self._pulled = pulled
            self._changed.notify_all()
        if replaced:
            log.info("version %d is not packed, because there is a newer one", replaced.version)
            replaced.discard()

    def has(self, version: int) -> bool:
        """Returns True if the version is published, queued or being published."""
        with self._changed:
            under_way = (written.version for written in (self._waiting, self._current) if written)
            return version in self.digests or version in under_way

    @property
    def is_busy(self) -> bool:
        """True if a version is queued or being published."""
        with self._changed:
            alive = self._failure is None
            return alive and (self._waiting is not None or self._current is not None)

    def check(self) -> None:
        """Raises GaveUpError if a publication failed permanently."""
        if self._failure:
            raise GaveUpError(
                f"the weights could not be packed into {self._store.directory}: {self._failure!r}"
            ) from self._failure

    def note_full(self, version: int, error: OSError) -> None:
        """Counts a version that failed because the disk is full, and frees space.

        The first time it removes versions that are kept because of their age, and later all but the newest
        version. It logs only the first time until a version is published.
        """
        with self._changed:
            self.failures += 1
            is_first = not self._is_logged
            self._is_logged = True
        if is_first:
            log.warning("version %d cannot be written now, and is tried again: %s", version, error)
        self._remove_old(self._keep if is_first else 1, 0.0)

    def close(self) -> None:
        """Publishes the queued version, and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    # --- in its thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while written := self._taken():
                self._pack(written)
                with self._changed:
                    self._current = None
        except BaseException as error:
            log.exception("the packer has failed")
            self._failure = error

    def _taken(self) -> Written | None:
        """Waits for a version, and re-signs `latest.json` meanwhile. Returns None after `close`."""
        with self._changed:
            while self._waiting is None and not self._closing:
                if not self._changed.wait(SIGN_EVERY_S):
                    self._renew()
            self._current = self._waiting
            self._waiting = None
            return self._current

    def _renew(self) -> None:
        try:
            self._store.writer.renew_latest()
        except OSError as error:
            log.warning("the newest version's name was not signed again: %s", error)

    def _pack(self, written: Written) -> None:
        began = time.monotonic()
        try:
            published = self._store.writer.publish(written, EPOCH)
        except OSError as error:
            if not is_passing(error):
                raise
            self.note_full(written.version, error)
            return
        with self._changed:
            self._is_logged = False
        self.newest = written.version
        self.ended_at = time.monotonic()
        self.seconds = self.ended_at - began
        self.digests[written.version] = published.manifest.digest
        self._remove_old(self._keep, KEEP_S, self._pulled)

    def _remove_old(self, keep: int, keep_s: float, pulled: Set[int] = frozenset()) -> None:
        try:
            self._store.retain(keep, keep_s, pulled)
        except OSError as error:
            log.warning("old versions were not removed: %s", error)
