"""One transfer over HTTP: a file into a `PartFile`, or a small file into memory.

A transfer raises as soon as a source hangs, is too slow, redirects, compresses, or sends a wrong length. This
module handles one source, without retries.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs

from extensions.stored_weights.store.part_file import PartFile
from extensions.stored_weights.store.rules import PullRules

LONGEST_WINDOW_S = 5.0  # maximum window over which the rate of a transfer is measured
ABSENT = (404, 410)


class TransferError(Exception):
    """Raised if a source did not send the file. A retry may succeed."""


class MissingError(TransferError):
    """Raised if a source responds that it does not have the file."""


class SlowError(TransferError):
    """Raised if a source was silent or slow for longer than the rules allow."""


class WrongBytesError(TransferError):
    """Raised if a source sent a complete file with the wrong SHA-256."""


class MixedBytesError(TransferError):
    """Raised if a file with bytes of several sources has the wrong SHA-256, so any of them may be wrong."""


class Transfer:
    """One transfer from one source. `bytes`: number of bytes received. `patience_s`: longest silence."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, rules: PullRules, patience_s: float):
        self.base_url = base_url
        self.bytes = 0
        self._http = http
        self._rules = rules
        self._patience_s = patience_s

    @asynccontextmanager
    async def get(
        self, path: str, headers: Mapping[str, str], nbytes: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the response to a request. `nbytes`: maximum size, for the timeout. Raises TransferError.

        Connection errors inside the block become TransferError too.
        """
        url = f"{self.base_url.rstrip('/')}/{path}"
        try:
            async with asyncio.timeout(self._rules.longest_s(nbytes)):
                async with asyncio.timeout(self._patience_s):
                    response = await self._http.get(url, headers=headers, allow_redirects=False)
                async with response:
                    _check_status(response)
                    yield response
        except TimeoutError as error:
            raise SlowError("is silent") from error
        except (aiohttp.ClientError, ConnectionError, ssl.SSLError, UnicodeError) as error:
            raise TransferError(f"{type(error).__name__}: {error}"[:300]) from error

    async def chunks(self, response: aiohttp.ClientResponse, most: int) -> AsyncIterator[bytes]:
        """Yields at most `most` bytes of the body. Raises TimeoutError or TransferError if it is slow."""
        window_s = min(self._rules.idle_timeout_s, LONGEST_WINDOW_S)
        began = None  # start of the window; the first one starts with the first byte
        in_window = 0
        while most:
            async with asyncio.timeout(self._patience_s):
                chunk = (await response.content.readany())[:most]
            if not chunk:
                return
            most -= len(chunk)
            self.bytes += len(chunk)
            yield chunk
            now = asyncio.get_running_loop().time()
            began = now if began is None else began
            in_window += len(chunk)
            if now - began >= window_s:
                if in_window < self._rules.min_bytes_per_s * (now - began):
                    raise SlowError(f"is slower than {self._rules.min_bytes_per_s} bytes per second")
                began = now
                in_window = 0


async def download(transfer: Transfer, path: str, part: PartFile) -> None:
    """Fetches the missing bytes of a file. Raises TransferError, or OSError if the disk is full.

    After an error, `part` keeps the received bytes, unless the complete file is wrong.
    """
    if part.single_source and not part.sources <= {transfer.base_url}:
        part.restart()
    if part.missing:
        headers = {"Range": f"bytes={part.size}-"} if part.size else {}
        async with transfer.get(path, headers, part.missing) as response:
            _check_beginning(response, part)
            async for chunk in transfer.chunks(response, part.missing + 1):
                _append(part, chunk, transfer.base_url)
    if part.missing:
        raise TransferError(f"ended after {part.size} of {part.wanted.bytes} bytes")
    if not part.is_right:
        _refuse(part)


def _append(part: PartFile, chunk: bytes, source: str) -> None:
    """Adds the next bytes. Raises TransferError if they exceed the file's size."""
    if len(chunk) > part.missing:
        part.restart()
        raise TransferError(f"gave more than {part.wanted.bytes} bytes")
    part.append(chunk, source)


def _refuse(part: PartFile) -> None:
    """Discards a wrong file. Raises WrongBytesError if it is from one source, else MixedBytesError."""
    several = len(part.sources) > 1
    part.restart()
    if several:
        part.single_source = True
        raise MixedBytesError("bytes of several sources do not make up the file")
    raise WrongBytesError("gave other bytes than the name says")


async def read_small(transfer: Transfer, path: str, most: int) -> bytes:
    """Returns a small file. Raises TransferError, and WrongBytesError if it exceeds `most` bytes."""
    async with transfer.get(path, {}, most) as response:
        return await _whole_body(transfer, response, most)


async def read_if_changed(
    transfer: Transfer, path: str, most: int, etag: str | None
) -> tuple[bytes, str | None] | None:
    """Returns a small file and its ETag, or None if the ETag is unchanged. Raises as `read_small`."""
    headers = {"If-None-Match": etag} if etag else {}
    async with transfer.get(path, headers, most) as response:
        if response.status == 304 and etag:
            return None
        return await _whole_body(transfer, response, most), response.headers.get(hdrs.ETAG)


async def _whole_body(transfer: Transfer, response: aiohttp.ClientResponse, most: int) -> bytes:
    if response.status != 200:
        raise TransferError(f"status {response.status}")
    if (response.content_length or 0) > most:
        raise WrongBytesError(f"is larger than {most} bytes")
    body = b"".join([chunk async for chunk in transfer.chunks(response, most + 1)])
    if len(body) > most:
        raise WrongBytesError(f"is larger than {most} bytes")
    return body


def _check_status(response: aiohttp.ClientResponse) -> None:
    """Raises TransferError for a redirect, an error, or a compressed body."""
    if response.status in ABSENT:
        raise MissingError("does not have the file")
    if response.status not in (200, 206, 304):
        raise TransferError(f"status {response.status}")
    if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise TransferError("compressed the transfer, which was not asked for")


def _check_beginning(response: aiohttp.ClientResponse, part: PartFile) -> None:
    """Raises TransferError unless the body is the missing range or the complete file.

    If it is the complete file, `part` restarts.
    """
    total = part.wanted.bytes
    expected = f"bytes {part.size}-{total - 1}/{total}"
    if response.status == 206 and response.headers.get(hdrs.CONTENT_RANGE) != expected:
        raise TransferError(f"gave another range than {expected}")
    if response.status == 304 or (response.status == 206 and not part.size):
        raise TransferError(f"status {response.status}")
    promised = part.missing if response.status == 206 else total
    if response.content_length not in (None, promised):
        raise TransferError(f"would give {response.content_length} bytes, not {promised}")
    if response.status == 200 and part.size:
        part.restart()
