"""The bodies of servers' answers, read within a limit: a broken server may send one without an end."""

import aiohttp


class TooLongAnswerError(aiohttp.ClientError):
    """A server's answer is longer than any that keeps the contract."""


async def body_of(response: aiohttp.ClientResponse, longest: int) -> bytes:
    """Returns the body. Raises TooLongAnswerError once it is longer than `longest` bytes."""
    parts: list[bytes] = []
    length = 0
    async for part in response.content.iter_any():
        length += len(part)
        if length > longest:
            raise TooLongAnswerError(f"{response.url} answered with more than {longest} bytes")
        parts.append(part)
    return b"".join(parts)
