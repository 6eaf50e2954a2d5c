"""Requests several completions of one prompt in one HTTP exchange, and yields each when it is complete.

The server must declare the capability `as_completed`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import aiohttp
import msgspec

from contracts.errors import ErrorCode
from pipelinerl.clients.answer_bodies import body_of, lines_of
from pipelinerl.clients.completions import Asked, connection_faults, error_of
from pipelinerl.clients.faults import ConnectionBrokenError, InvalidResponseError, ServerFaultError
from pipelinerl.domains.base import Answer

ENDS_WITHIN_S = 1.0  # longest wait for the end of the body, after which the connection is closed
STATUSES = {code.code: code.http_status for code in ErrorCode}


class _Choice(msgspec.Struct):
    index: int


class _Error(msgspec.Struct):
    code: str


class _Line(msgspec.Struct):
    choices: list[_Choice] = []
    error: _Error | None = None


async def complete_each(
    session: aiohttp.ClientSession, url: str, asked: Asked, n: int
) -> AsyncIterator[tuple[int, Answer | ServerFaultError]]:
    """Yields the index, from 0 to `n` - 1, and the completion of each choice, in the order of completion.

    Yields an error in place of a single invalid choice. Raises RequestRefusedError or a ServerFaultError if
    no further choices can arrive.
    """
    body = asked.body(url) | {"n": n, "as_completed": True}
    missing = set(range(n))
    with connection_faults():
        async with session.post(url + asked.route, json=body, allow_redirects=False) as response:
            if response.status != 200:
                raise error_of(response.status, await body_of(response, asked.longest_answer))
            async with aclosing(lines_of(response, asked.longest_answer)) as lines:
                while missing and (line := await anext(lines, None)) is not None:
                    index = _index_of(line, missing, url)
                    missing.remove(index)
                    yield index, _answer_or_fault(asked, line, url)
            await _read_end(response)
    if missing:
        raise ConnectionBrokenError("connection")


async def _read_end(response: aiohttp.ClientResponse) -> None:
    """Reads the end of the body, so that the connection can be reused."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(ENDS_WITHIN_S):
            await response.content.read(1)


def _answer_or_fault(asked: Asked, line: bytes, url: str) -> Answer | ServerFaultError:
    try:
        return asked.answer_of(line, url)
    except ServerFaultError as fault:
        return fault


def _index_of(line: bytes, missing: set[int], url: str) -> int:
    """Returns the index of the line's choice. Raises a ServerFaultError if it is not in `missing`."""
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidResponseError(f"{url} answered outside the contract: {error}") from error
    if read.error:
        raise error_of(STATUSES.get(read.error.code, 500), line)
    indices = [choice.index for choice in read.choices]
    if len(indices) != 1 or indices[0] not in missing:
        raise InvalidResponseError(f"{url} answered outside the contract: a line of choices {indices}")
    return indices[0]
