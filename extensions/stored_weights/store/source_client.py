"""Fetches a file from one of several sources, with retries."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import aiohttp

from extensions.stored_weights.store.download import (
    MissingError,
    MixedBytesError,
    SlowError,
    Transfer,
    TransferError,
    WrongBytesError,
)
from extensions.stored_weights.store.errors import BadDigestError, GoneError, NoSourceError, StoreError
from extensions.stored_weights.store.rules import PullRules
from extensions.stored_weights.store.sources import Source, Sources

TRIES = 3  # failed requests for a file after which a source is not used for it
WRONGS = 2  # wrong responses after which a source is not used for the file
WRONG_BACKOFF_S = 1.0  # pause before a retry after wrong bytes, if there is no other source
HURRY_S = 3.0  # allowed silence of a source while another one has not been tried
CACHED_BYTES_PER_S = 4 * 2**20  # minimum rate of a relay that fetches a file before it sends the first byte

Result = TypeVar("Result")


class Tries:
    """The results of the requests for one file, by source."""

    def __init__(self, sources: Sources):
        self._sources = sources
        self._missing: set[Source] = set()
        self._wrong: Counter[Source] = Counter()
        self._failures: Counter[Source] = Counter()
        self._reasons: dict[Source, str] = {}

    def count(self, source: Source, error: TransferError, hurried: bool) -> None:
        """Counts an error, here and in the source's statistics.

        A source that was silent for the complete idle timeout is not used again for the file.
        """
        self._reasons[source] = str(error)
        now = asyncio.get_running_loop().time()
        if isinstance(error, MissingError):
            self._missing.add(source)
            source.missed(now)
        elif isinstance(error, WrongBytesError):
            self._wrong[source] += 1
            source.failed(now)
        elif not isinstance(error, MixedBytesError):
            self._failures[source] += TRIES if isinstance(error, SlowError) and not hurried else 1
            source.failed(now)

    @property
    def failed(self) -> int:
        """The number of failed requests. It changes the name by which the next source is picked."""
        return self._failures.total() + self._wrong.total()

    def refused(self) -> set[Source]:
        """Returns the sources that are not used again for the file."""
        failed = {source for source, count in self._failures.items() if count >= TRIES}
        return self._missing | self._twice_wrong() | failed

    def _twice_wrong(self) -> set[Source]:
        """Returns the sources that sent wrong bytes twice. Once may be a transmission error."""
        return {source for source, count in self._wrong.items() if count >= WRONGS}

    def is_last(self, source: Source) -> bool:
        """Returns True if all other sources are refused."""
        return set(self._sources.all) - self.refused() == {source}

    def has_untried_besides(self, source: Source) -> bool:
        """Returns True if another source has not been tried and is not in backoff."""
        now = asyncio.get_running_loop().time()
        others = set(self._sources.all) - self._reasons.keys() - {source}
        return any(other.backoff_until <= now for other in others)

    def error(self, name: str) -> StoreError:
        """Returns the error of the request: GoneError or BadDigestError only if all sources agree."""
        everyone = set(self._sources.all)
        reasons = "; ".join(f"{source.url} {reason}" for source, reason in self._reasons.items())
        message = f"{name}: {reasons}"[:1000]
        if self._missing == everyone:
            return GoneError(message)
        if self._twice_wrong() == everyone:
            return BadDigestError(message)
        return NoSourceError(message)


class SourceClient:
    """The sources of a channel, with an HTTP client. Use it in one event loop."""

    def __init__(self, sources: Sources, rules: PullRules):
        self.sources = sources
        self.rules = rules
        self._ended = asyncio.Event()  # set when a transfer ends
        self._http: aiohttp.ClientSession | None = None

    async def obtain(
        self, name: str, fetch: Callable[[Transfer], Awaitable[Result]], nbytes: int = 0
    ) -> Result:
        """Calls `fetch` with one source after the other, and returns the first result.

        nbytes: size of the file, for the timeout. Raises GoneError, BadDigestError or NoSourceError if no
        source sends the file.
        """
        tries = Tries(self.sources)
        while len(refused := tries.refused()) < len(self.sources.all):
            source = await self._free_source(f"{name} {tries.failed}", refused)
            hurried = tries.has_untried_besides(source)
            patience_s = self.rules.idle_timeout_s
            if hurried:
                patience_s = min(HURRY_S + nbytes / CACHED_BYTES_PER_S, patience_s)
            try:
                return await self._ask(source, patience_s, fetch)
            except TransferError as error:
                tries.count(source, error, hurried)
                if isinstance(error, WrongBytesError) and tries.is_last(source):
                    await asyncio.sleep(WRONG_BACKOFF_S)
        raise tries.error(name)

    async def _free_source(self, name: str, refused: set[Source]) -> Source:
        while (source := self.sources.pick(asyncio.get_running_loop().time(), name, refused)) is None:
            self._ended.clear()
            await self._ended.wait()
        return source

    async def _ask(
        self, source: Source, patience_s: float, fetch: Callable[[Transfer], Awaitable[Result]]
    ) -> Result:
        transfer = self.transfer(source, patience_s)
        began = asyncio.get_running_loop().time()
        source.running += 1
        try:
            result = await fetch(transfer)
        finally:
            source.running -= 1
            source.bytes += transfer.bytes
            self._ended.set()
        source.succeeded(transfer.bytes, asyncio.get_running_loop().time() - began)
        return result

    def transfer(self, source: Source, patience_s: float) -> Transfer:
        """Returns a new transfer from this source. `patience_s`: longest silence."""
        return Transfer(self._session(), source.url, self.rules, patience_s)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http

    async def close(self) -> None:
        """Closes all connections."""
        if self._http is not None:
            await self._http.close()
