"""Reads response bodies up to a limit, because a broken server may send an endless body."""

from collections.abc import AsyncIterator

import aiohttp


class TooLongAnswerError(aiohttp.ClientError):
    """A server's answer is longer than the contract allows."""


async def body_of(response: aiohttp.ClientResponse, longest: int) -> bytes:
    """Returns the body. Raises TooLongAnswerError if it is longer than `longest` bytes."""
    parts: list[bytes] = []
    length = 0
    async for part in response.content.iter_any():
        length += len(part)
        if length > longest:
            raise TooLongAnswerError(f"{response.url} answered with more than {longest} bytes")
        parts.append(part)
    return b"".join(parts)


async def lines_of(response: aiohttp.ClientResponse, longest: int) -> AsyncIterator[bytes]:
    """Yields the lines of the body. Raises TooLongAnswerError if one is longer than `longest` bytes."""
    parts: list[bytes] = []
    length = 0
    async for part in response.content.iter_any():
        *ended, rest = part.split(b"\n")
        for line in ended:
            parts.append(line)
            yield b"".join(parts)
            parts.clear()
            length = 0
        length += len(rest)
        if length > longest:
            raise TooLongAnswerError(f"{response.url} answered with a line of more than {longest} bytes")
        parts.append(rest)
    if any(parts):
        yield b"".join(parts)
