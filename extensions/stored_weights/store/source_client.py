"""Obtains a file from whichever source gives it: source after source, until one does or none is left."""

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

TRIES = 3  # of one file at one source
WRONGS = 2  # wrong answers after which a source is not asked for the file again
WRONG_REST_S = 1.0  # until a source that gave wrong bytes is asked again, if no other one is left
HURRY_S = 3.0  # for which a source may be silent while another one has not been tried
CACHED_BYTES_PER_S = 4 * 2**20  # with which a relay at least fetches a file, before it sends the first byte

Result = TypeVar("Result")


class Tries:
    """What every source has answered to the request for one file."""

    def __init__(self, sources: Sources):
        self._sources = sources
        self._missing: set[Source] = set()
        self._wrong: Counter[Source] = Counter()
        self._failures: Counter[Source] = Counter()
        self._reasons: dict[Source, str] = {}

    def count(self, source: Source, error: TransferError, hurried: bool) -> None:
        """Counts an error, here and in what is known of the source.

        A source that was given all its time and was silent is not asked for the file again.
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
        """How often a source failed to give the file. Another one may suit the next try."""
        return self._failures.total() + self._wrong.total()

    def refused(self) -> set[Source]:
        """Returns the sources that are not asked again."""
        failed = {source for source, count in self._failures.items() if count >= TRIES}
        return self._missing | self._lying() | failed

    def _lying(self) -> set[Source]:
        """Returns the sources that gave wrong bytes twice: once may have been an accident on the way."""
        return {source for source, count in self._wrong.items() if count >= WRONGS}

    def is_last(self, source: Source) -> bool:
        """Returns whether no other source will be asked for the file."""
        return set(self._sources.all) - self.refused() == {source}

    def has_untried_besides(self, source: Source) -> bool:
        """Returns whether a source other than this one has not been asked yet, and does not rest."""
        now = asyncio.get_running_loop().time()
        others = set(self._sources.all) - self._reasons.keys() - {source}
        return any(other.rests_until <= now for other in others)

    def error(self, name: str) -> StoreError:
        """Returns why no source gave the file. It is gone or wrong only if all sources agree."""
        everyone = set(self._sources.all)
        reasons = "; ".join(f"{source.url} {reason}" for source, reason in self._reasons.items())
        message = f"{name}: {reasons}"[:1000]
        if self._missing == everyone:
            return GoneError(message)
        if self._lying() == everyone:
            return BadDigestError(message)
        return NoSourceError(message)


class SourceClient:
    """The sources of a channel, and the HTTP client with which they are asked. It lives in one event loop."""

    def __init__(self, sources: Sources, rules: PullRules):
        self.sources = sources
        self.rules = rules
        self._ended = asyncio.Event()  # a transfer has ended since the last pick found no free source
        self._http: aiohttp.ClientSession | None = None

    async def obtain(
        self, name: str, fetch: Callable[[Transfer], Awaitable[Result]], nbytes: int = 0
    ) -> Result:
        """Returns what `fetch` makes of the first source that gives the file, which has so many bytes.

        Raises GoneError, BadDigestError or NoSourceError if there is none.
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
                    await asyncio.sleep(WRONG_REST_S)
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
        """Returns a transfer from this source, which may be silent for so long before it answers."""
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
        """Ends all connections."""
        if self._http is not None:
            await self._http.close()
