"""Watches `latest.json` at all sources of a run. Each source is asked in a task of its own."""

import asyncio
import logging
import re
import time

from pydantic import ValidationError

from extensions.stored_weights.store.download import MissingError, TransferError, read_if_changed
from extensions.stored_weights.store.errors import BadManifestError, BadSignatureError, StoreError
from extensions.stored_weights.store.layout import latest_path
from extensions.stored_weights.store.manifest import MAX_LATEST_BYTES, LatestVersion
from extensions.stored_weights.store.signing import LATEST_TYPE, Verifier
from extensions.stored_weights.store.source_client import SourceClient
from extensions.stored_weights.store.sources import Source

LOOK_S = 10.0  # the longest that one source may take
GRACE_S = 1.0  # for the other sources, once one has answered
ETAG = re.compile(r"[\x21-\x7e]{1,256}")

log = logging.getLogger(__name__)


class SourceLook:
    """What one source has last said about the newest version."""

    def __init__(self, source: Source):
        self.source = source
        self.latest: LatestVersion | None = None
        self.etag: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.complaint = ""


class LatestWatch:
    """The newest version of a run, as far as its sources have told."""

    def __init__(self, client: SourceClient, verifier: Verifier, run: str):
        self.newest: LatestVersion | None = None
        self.seen_at: float | None = None  # monotonic time at which a newer signature was last seen
        self._answered_at: float | None = None  # monotonic time of the last answer, also of a 404
        self._client = client
        self._verifier = verifier
        self._run = run
        self._returned = -1  # the version that `look` returned last
        self._looks = [SourceLook(source) for source in client.sources.all]

    async def look(self) -> LatestVersion | None:
        """Returns the newest version once it is newer than the one returned before, or None.

        It waits for no source longer than a moment once another one has answered. The answers of those that
        are slower are used by the next call.
        """
        for look in self._looks:
            if look.task is None or look.task.done():
                look.task = asyncio.create_task(self._ask(look))
        waiting = {look.task for look in self._looks if look.task is not None}
        began = time.monotonic()
        while waiting and self._newer() is None:
            answered = self._answered_at is not None and self._answered_at >= began
            grace_s = min(self._client.rules.poll_s, GRACE_S)
            done, waiting = await asyncio.wait(
                waiting, timeout=grace_s if answered else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
        newer = self._newer()
        if newer is not None:
            self._returned = newer.version
        return newer

    def _newer(self) -> LatestVersion | None:
        """Returns the newest version if `look` has not returned it yet."""
        if self.newest is not None and self.newest.version > self._returned:
            return self.newest
        return None

    async def _ask(self, look: SourceLook) -> None:
        """Asks one source. What it answers is used at once; why it is of no use goes to the log."""
        complaint = ""
        try:
            async with asyncio.timeout(LOOK_S):
                await self._read(look)
        except TimeoutError:
            complaint = "does not answer"
        except MissingError:
            self._answered_at = time.monotonic()
        except (TransferError, StoreError) as error:
            complaint = str(error)
        if complaint and complaint != look.complaint:
            log.warning("latest.json of %s is of no use: %s", look.source.url, complaint)
        look.complaint = complaint

    async def _read(self, look: SourceLook) -> None:
        rules = self._client.rules
        transfer = self._client.transfer(look.source, rules.idle_timeout_s)
        changed = await read_if_changed(transfer, latest_path(self._run), MAX_LATEST_BYTES, look.etag)
        if changed is not None:
            body, etag = changed
            self._take(look, self._opened(look, body))
            look.etag = etag if etag and ETAG.fullmatch(etag) else None
        self._answered_at = time.monotonic()

    def _opened(self, look: SourceLook, body: bytes) -> LatestVersion:
        """Returns a verified `latest.json`. Raises StoreError, and counts it against the source."""
        try:
            return opened_latest(self._verifier, self._run, body)
        except StoreError:
            look.source.failed(time.monotonic())
            raise

    def _take(self, look: SourceLook, latest: LatestVersion) -> None:
        """Uses what a source said. Raises BadManifestError if it said something newer before."""
        if look.latest is not None and latest.version < look.latest.version:
            look.source.failed(time.monotonic())
            raise BadManifestError(f"an older version, {latest.version}, replaces {look.latest.version}")
        newest = self.newest
        if newest and latest.version == newest.version and latest.manifest_sha256 != newest.manifest_sha256:
            raise BadManifestError(f"version {latest.version} has two manifests; the first one stays")
        if newest is None or _order(latest) > _order(newest):
            self.newest = latest
            self.seen_at = time.monotonic()
        look.latest = latest

    async def close(self) -> None:
        """Ends the tasks."""
        tasks = [look.task for look in self._looks if look.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _order(latest: LatestVersion) -> tuple[int, int]:
    return latest.version, latest.signed_at


def opened_latest(verifier: Verifier, run: str, body: bytes) -> LatestVersion:
    """Returns the content of a `latest.json`. Raises BadSignatureError or BadManifestError."""
    try:
        latest = LatestVersion.model_validate_json(verifier.open(body, LATEST_TYPE))
    except ValidationError as error:
        raise BadManifestError(f"no latest.json: {error.errors(include_url=False)[0]['msg']}") from error
    if latest.run != run:
        raise BadSignatureError(f"latest.json of the run {latest.run[:100]}, not of {run}")
    return latest
