"""Several completions of one prompt in one HTTP exchange, each as soon as it is complete.

The server must declare the capability `as_completed`.
"""

from collections.abc import AsyncIterator

import aiohttp
import msgspec

from contracts.errors import ErrorCode
from pipelinerl.clients.answer_bodies import lines_of
from pipelinerl.clients.completions import Asked, connection_faults, error_of
from pipelinerl.clients.faults import ConnectionBrokenError, InvalidResponseError
from pipelinerl.domains.base import Answer

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
) -> AsyncIterator[Answer]:
    """Yields `n` completions in the order in which they end.

    Raises RequestRefusedError or a ServerFaultError, and yields no more.
    """
    body = asked.body | {"n": n, "as_completed": True}
    missing = set(range(n))
    with connection_faults():
        async with session.post(url + asked.route, json=body, allow_redirects=False) as response:
            lines = lines_of(response, asked.longest_answer)
            if response.status != 200:
                raise error_of(response.status, b"".join([line async for line in lines]))
            async for line in lines:
                _take(line, missing, url)
                yield asked.answer_of(line, url)
    if missing:
        raise ConnectionBrokenError("connection")


def _take(line: bytes, missing: set[int], url: str) -> None:
    """Takes the index of the line's choice from those that are missing. Raises a ServerFaultError."""
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidResponseError(f"{url} answered outside the contract: {error}") from error
    if read.error:
        raise error_of(STATUSES.get(read.error.code, 500), line)
    indices = {choice.index for choice in read.choices}
    if len(read.choices) != 1 or not indices <= missing:
        raise InvalidResponseError(f"{url} answered outside the contract: a line of choices {indices}")
    missing -= indices
