"""Completions in arrays from the servers that have them, as their `/contract` says, in lists from the others.

Used by `LLMClient`. A server is asked once, and again after it was not available or
answered wrongly: another may have its port.
"""

import aiohttp
import msgspec

from pipelinerl.clients.answer_bodies import body_of
from pipelinerl.clients.completions import Prompt, Sampling, complete
from pipelinerl.clients.faults import InvalidResponseError, RequestRefusedError, ServerUnavailableError
from pipelinerl.domains.base import Answer

WORD = "arrays"
NOT_TAKEN = "unsupported_parameter"
ANSWER_TIMEOUT_S = 10.0  # of `/contract`
LONGEST_CONTRACT = 2**20  # bytes


class _Contract(msgspec.Struct):
    capabilities: list[str]


class ArrayAnswers:
    """Which servers answer in arrays; one object for all attempts of a process."""

    def __init__(self, session: aiohttp.ClientSession):
        self._session = session
        self._have: dict[str, bool] = {}  # by URL

    async def complete(
        self, url: str, prompt: Prompt, sampling: Sampling, tools: list[dict] | None = None
    ) -> Answer:
        """Returns one completion, like `completions.complete`."""
        arrays = await self._has_arrays(url)
        try:
            return await complete(self._session, url, prompt, sampling, tools, arrays)
        except (ServerUnavailableError, InvalidResponseError):
            self._have.pop(url, None)
            raise
        except RequestRefusedError as error:
            if not arrays or str(error) != NOT_TAKEN:
                raise
        self._have[url] = False  # it may be another server than the one that was asked
        return await complete(self._session, url, prompt, sampling, tools)

    async def _has_arrays(self, url: str) -> bool:
        if url not in self._have:
            self._have[url] = False  # no other request waits for the answer
            declared = None
            try:
                declared = await self._declares_arrays(url)
            finally:
                self._have.pop(url, None)
            if declared is None:
                return False
            self._have[url] = declared
        return self._have[url]

    async def _declares_arrays(self, url: str) -> bool | None:
        """Returns None where the server did not answer, and is to be asked again."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        asked = self._session.get(f"{url}/contract", timeout=timeout, allow_redirects=False)
        try:
            async with asked as response:
                body = await body_of(response, LONGEST_CONTRACT)
            return WORD in msgspec.json.decode(body, type=_Contract).capabilities
        except (aiohttp.ClientError, TimeoutError):
            return None
        except (msgspec.MsgspecError, ValueError, RecursionError):  # no answer of the contract's
            return False
