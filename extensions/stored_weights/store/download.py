"""One transfer over HTTP: a file into a `PartFile`, or a small file into memory.

A transfer ends with an error as soon as the source breaks a promise. Sources hang, trickle, redirect,
compress, or give another length than they should. Nothing here knows other sources, or tries again.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs

from extensions.stored_weights.store.part_file import PartFile
from extensions.stored_weights.store.rules import PullRules

LONGEST_WINDOW_S = 5.0  # over which the rate of a transfer is measured
ABSENT = (404, 410)


class TransferError(Exception):
    """A source that did not give what it was asked for. It may the next time."""


class MissingError(TransferError):
    """A source that says that it does not have the file."""


class SlowError(TransferError):
    """A source that was silent or slow for longer than the rules allow."""


class WrongBytesError(TransferError):
    """A source that gave a complete file which is another one."""


class MixedBytesError(TransferError):
    """Bytes of several sources that do not make up the file. It is unknown which of them are wrong."""


class Transfer:
    """One transfer from one source: how long it may be silent, and what has come."""

    def __init__(self, http: aiohttp.ClientSession, base_url: str, rules: PullRules, patience_s: float):
        self.base_url = base_url
        self.bytes = 0
        self._http = http
        self._rules = rules
        self._patience_s = patience_s  # the longest silence

    @asynccontextmanager
    async def get(
        self, path: str, headers: Mapping[str, str], nbytes: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yields the response to a request for at most so many bytes. Raises TransferError.

        An error of the connection inside the block becomes a TransferError as well.
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
        """Yields the body, cut off after `most` bytes. Raises TimeoutError or TransferError if it is slow."""
        window_s = min(self._rules.idle_timeout_s, LONGEST_WINDOW_S)
        began = None  # of the window; it begins with the first byte
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

    What came before an error stays in `part`, unless the complete file is wrong.
    """
    if part.one_giver and not part.givers <= {transfer.base_url}:
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


def _append(part: PartFile, chunk: bytes, giver: str) -> None:
    """Adds the next bytes. Raises TransferError if they are more than there can be."""
    if len(chunk) > part.missing:
        part.restart()
        raise TransferError(f"gave more than {part.wanted.bytes} bytes")
    part.append(chunk, giver)


def _refuse(part: PartFile) -> None:
    """Drops a complete file that is wrong. Raises WrongBytesError if one source alone gave it."""
    several = len(part.givers) > 1
    part.restart()
    if several:
        part.one_giver = True
        raise MixedBytesError("bytes of several sources do not make up the file")
    raise WrongBytesError("gave other bytes than the name says")


async def read_small(transfer: Transfer, path: str, most: int) -> bytes:
    """Returns a small file. Raises TransferError, and WrongBytesError if it exceeds `most` bytes."""
    async with transfer.get(path, {}, most) as response:
        return await _whole_body(transfer, response, most)


async def read_if_changed(
    transfer: Transfer, path: str, most: int, etag: str | None
) -> tuple[bytes, str | None] | None:
    """Returns a small file and its ETag, or None if it still has the given ETag. Raises as `read_small`."""
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
    """Raises TransferError for what no response may be: a redirect, an error, a compressed body."""
    if response.status in ABSENT:
        raise MissingError("does not have the file")
    if response.status not in (200, 206, 304):
        raise TransferError(f"status {response.status}")
    if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise TransferError("compressed the transfer, which was not asked for")


def _check_beginning(response: aiohttp.ClientResponse, part: PartFile) -> None:
    """Raises TransferError unless the body is what is missing, or the whole file: then `part` restarts."""
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
