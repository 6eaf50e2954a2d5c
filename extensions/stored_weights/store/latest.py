"""Polls `latest.json` at all sources of a run, each in its own task."""

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

POLL_TIMEOUT_S = 10.0  # timeout of a request to one source
GRACE_S = 1.0  # maximum wait for other sources after one has responded
ETAG = re.compile(r"[\x21-\x7e]{1,256}")

log = logging.getLogger(__name__)


class SourceState:
    """The last `latest.json` of one source."""

    def __init__(self, source: Source):
        self.source = source
        self.latest: LatestVersion | None = None
        self.etag: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.problem = ""  # last problem that was logged


class LatestWatch:
    """The newest version of a run that its sources report."""

    def __init__(self, client: SourceClient, verifier: Verifier, run: str):
        self.newest: LatestVersion | None = None
        self.seen_at: float | None = None  # monotonic time at which a newer signature was last seen
        self._answered_at: float | None = None  # monotonic time of the last response, including a 404
        self._client = client
        self._verifier = verifier
        self._run = run
        self._returned = -1  # version that `poll` returned last
        self._states = [SourceState(source) for source in client.sources.all]

    async def poll(self) -> LatestVersion | None:
        """Polls all sources. Returns the newest version if it is newer than the last returned one, or None.

        After a first response, it waits only briefly for the other sources. The next call uses their
        responses.
        """
        for state in self._states:
            if state.task is None or state.task.done():
                state.task = asyncio.create_task(self._ask(state))
        waiting = {state.task for state in self._states if state.task is not None}
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
        if self.newest is not None and self.newest.version > self._returned:
            return self.newest
        return None

    async def _ask(self, state: SourceState) -> None:
        """Requests the file from one source, and uses it at once. Logs a problem when it changes."""
        problem = ""
        try:
            async with asyncio.timeout(POLL_TIMEOUT_S):
                await self._read(state)
        except TimeoutError:
            problem = "does not answer"
        except MissingError:
            self._answered_at = time.monotonic()
        except (TransferError, StoreError) as error:
            problem = str(error)
        if problem and problem != state.problem:
            log.warning("latest.json of %s is of no use: %s", state.source.url, problem)
        state.problem = problem

    async def _read(self, state: SourceState) -> None:
        rules = self._client.rules
        transfer = self._client.transfer(state.source, rules.idle_timeout_s)
        changed = await read_if_changed(transfer, latest_path(self._run), MAX_LATEST_BYTES, state.etag)
        if changed is not None:
            body, etag = changed
            self._take(state, self._opened(state, body))
            state.etag = etag if etag and ETAG.fullmatch(etag) else None
        self._answered_at = time.monotonic()

    def _opened(self, state: SourceState, body: bytes) -> LatestVersion:
        """Returns a verified `latest.json`. Raises StoreError, and counts it as a failure of the source."""
        try:
            return opened_latest(self._verifier, self._run, body)
        except StoreError:
            state.source.failed(time.monotonic())
            raise

    def _take(self, state: SourceState, latest: LatestVersion) -> None:
        """Uses the version of a source. Raises BadManifestError if the source reported a newer one before."""
        if state.latest is not None and latest.version < state.latest.version:
            state.source.failed(time.monotonic())
            raise BadManifestError(f"an older version, {latest.version}, replaces {state.latest.version}")
        newest = self.newest
        if newest and latest.version == newest.version and latest.manifest_sha256 != newest.manifest_sha256:
            raise BadManifestError(f"version {latest.version} has two manifests; the first one stays")
        if newest is None or _order(latest) > _order(newest):
            self.newest = latest
            self.seen_at = time.monotonic()
        state.latest = latest

    async def close(self) -> None:
        """Cancels the tasks."""
        tasks = [state.task for state in self._states if state.task is not None]
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
