"""Requests completions in the formats that a server's `/contract` declares: arrays, several per request.

Other servers get requests for lists and single completions. A server's contract is fetched once, and again
after a failure, because another server may listen at its port.
"""

import aiohttp
import msgspec

from contracts.limits import MAX_N, MAX_TOKENS_OF_CHOICES
from pipelinerl.clients.answer_bodies import body_of
from pipelinerl.clients.completions import Asked, Prompt, Sampling, complete
from pipelinerl.clients.faults import InvalidResponseError, RequestRefusedError, ServerUnavailableError
from pipelinerl.clients.shared_requests import SharedRequests
from pipelinerl.domains.base import Answer

NOT_TAKEN = "unsupported_parameter"
ANSWER_TIMEOUT_S = 10.0  # for `/contract`
LONGEST_CONTRACT = 2**20  # bytes


class _Limits(msgspec.Struct, frozen=True):
    max_n: int = MAX_N


class _Contract(msgspec.Struct):
    capabilities: list[str]
    limits: _Limits | None = None


class Forms(msgspec.Struct, frozen=True):
    """The response formats of a server.

    arrays: True if it returns tokens in arrays.
    choices: largest number of completions per request, each returned when it is complete.
    """

    arrays: bool = False
    choices: int = 1


class ServerForms:
    """The response formats of all servers. All attempts of a process share one object."""

    def __init__(self, session: aiohttp.ClientSession):
        self._session = session
        self._shared = SharedRequests(session)
        self._forms: dict[str, Forms] = {}  # by URL

    async def complete(
        self, url: str, prompt: Prompt, sampling: Sampling, tools: list[dict] | None = None
    ) -> Answer:
        """Returns one completion, like `completions.complete`."""
        forms = await self._forms_of(url)
        try:
            return await self._in(forms, url, Asked(prompt, sampling, tools, forms.arrays))
        except (ServerUnavailableError, InvalidResponseError):
            self._forms.pop(url, None)
            raise
        except RequestRefusedError as error:
            if forms == Forms() or str(error) != NOT_TAKEN:
                raise
        self._forms[url] = Forms()  # another server may have replaced the one that declared them
        return await complete(self._session, url, Asked(prompt, sampling, tools))

    async def _in(self, forms: Forms, url: str, asked: Asked) -> Answer:
        sampling = asked.sampling
        most = min(forms.choices, MAX_TOKENS_OF_CHOICES // sampling.max_tokens)
        # A seed belongs to one choice, and a server may refuse several greedy choices.
        if most < 2 or sampling.seed is not None or sampling.temperature == 0:
            return await complete(self._session, url, asked)
        return await self._shared.complete(url, asked, most)

    async def _forms_of(self, url: str) -> Forms:
        if url not in self._forms:
            self._forms[url] = Forms()  # other requests do not wait for the contract
            declared = None
            try:
                declared = await self._declared(url)
            finally:
                self._forms.pop(url, None)
            if declared is None:
                return Forms()
            self._forms[url] = declared
        return self._forms[url]

    async def _declared(self, url: str) -> Forms | None:
        """Returns the declared formats, or None if the server did not answer and must be asked again."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        asked = self._session.get(f"{url}/contract", timeout=timeout, allow_redirects=False)
        try:
            async with asked as response:
                body = await body_of(response, LONGEST_CONTRACT)
            contract = msgspec.json.decode(body, type=_Contract)
        except (aiohttp.ClientError, TimeoutError):
            return None
        except (msgspec.MsgspecError, ValueError, RecursionError):  # the answer is not a contract
            return Forms()
        limits = contract.limits or _Limits()
        choices = limits.max_n if "as_completed" in contract.capabilities else 1
        return Forms("arrays" in contract.capabilities, max(1, min(choices, MAX_N)))
