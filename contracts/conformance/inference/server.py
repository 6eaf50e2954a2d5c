"""A client of one inference server: `/contract`, `/health` and the generation routes."""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from pydantic import ValidationError

from contracts.conformance.inference.event_stream import Event
from contracts.conformance.inference.http_client import HttpClient, decoded, describe_request
from contracts.conformance.inference.samples import Sample, samples, streamed
from contracts.conformance.verdicts import GuaranteeError
from contracts.errors import ErrorCode
from contracts.inference import ContractInfo

AGAIN_S = 0.25  # delay before a request to an overloaded server is repeated
TRIES = 80  # attempts at such a request
Chunks = list[dict[str, Any]]


class Server(HttpClient):
    """One server. token: the bearer token with which it was started."""

    def __init__(self, http: aiohttp.ClientSession, url: str, token: str | None):
        super().__init__(http, url, token)
        self._model: str | None = None  # name of the model, which never changes

    async def contract(self) -> ContractInfo:
        """Returns `GET /contract`. Raises GuaranteeError unless it has the contract's fields."""
        status, body = await self.get("/contract")
        if status != 200:
            raise GuaranteeError(
                f"GET /contract: {status} {body}", "200 and what the contract lists", "ask it"
            )
        try:
            return ContractInfo.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise GuaranteeError(
                f"GET /contract: {'.'.join(map(str, first['loc']))}: {first['msg']}",
                "what the contract lists",
                f"curl {self.url}/contract",
            ) from error

    async def model(self) -> str:
        if self._model is None:
            self._model = (await self.contract()).model
        return self._model

    async def ready(self) -> bool:
        return (await self.get("/health"))[0] == 200

    async def unfinished(self) -> int:
        process = (await self.contract()).process
        return process.running + process.waiting

    # --- generation -------------------------------------------------------------------------------

    async def complete(
        self,
        prompt: list[int] | str,
        max_tokens: int,
        stream: bool = False,
        in_lines: bool = False,
        **fields: Any,
    ) -> Sample:
        """Returns one completion of `prompt`, optionally streamed or as_completed."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": True, **fields}
        if stream:
            return streamed(await self.stream("/v1/completions", body))[0]
        if in_lines:
            return samples(await self.joined_lines("/v1/completions", body))[0]
        return (await self.choices(prompt, max_tokens, **fields))[0]

    async def choices(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> list[Sample]:
        """Returns every choice of a completion of `prompt`."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": True, **fields}
        return samples(await self.generate("/v1/completions", body))

    async def chat(self, messages: list[dict[str, Any]], max_tokens: int, **fields: Any) -> list[Sample]:
        """Returns every choice of a completion of a conversation."""
        body = {"messages": messages, "max_tokens": max_tokens, "logprobs": True, **fields}
        return samples(await self.generate("/v1/chat/completions", body))

    async def generate(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Returns the body of the response. Raises GuaranteeError unless the status is 200.

        Repeats the request while the server is overloaded.
        """
        body = {"model": await self.model()} | body
        for _ in range(TRIES):
            status, answer = await self.post(path, body)
            if not _overloaded(status, answer):
                break
            await asyncio.sleep(AGAIN_S)
        if status != 200:
            raise GuaranteeError(
                f"POST {path}: {status} {answer}", "200 and a completion", describe_request(path, body)
            )
        return answer

    async def lines(self, path: str, body: dict[str, Any]) -> Chunks:
        """Returns the lines of an as_completed response."""
        return [line for _, line in await self.timed_lines(path, body)]

    async def joined_lines(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Merges the lines of an as_completed response, with its choices ordered by index."""
        lines = await self.lines(path, body)
        choices = [choice for line in lines for choice in line["choices"]]
        in_order = sorted(choices, key=lambda choice: choice.get("index", 0))
        return lines[0] | {"choices": in_order}

    async def timed_lines(self, path: str, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        """Returns (time, line) pairs. Raises GuaranteeError unless each line has choices."""
        body = {"model": await self.model()} | body | {"as_completed": True}
        for _ in range(TRIES):
            texts: list[Event] = []
            status = await self.ask_lines(path, body, texts)
            if not _overloaded(status, decoded("".join(text for _, text in texts))):
                break
            await asyncio.sleep(AGAIN_S)
        lines = [(at, decoded(text)) for at, text in texts]
        if status != 200 or not lines or not all(isinstance(line.get("choices"), list) for _, line in lines):
            raise GuaranteeError(
                f"POST {path}: {status} {str(texts)[:300]}",
                "200 and lines of JSON with choices",
                describe_request(path, body),
            )
        return lines

    async def stream(self, path: str, body: dict[str, Any]) -> Chunks:
        """Returns the chunks of a streamed response. Raises GuaranteeError unless it is complete."""
        return [chunk for _, chunk in await self.timed_stream(path, body)]

    async def timed_stream(self, path: str, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        """Returns (time, chunk) pairs of a streamed response. Raises GuaranteeError unless it is complete."""
        body = {"model": await self.model()} | body | {"stream": True}
        for _ in range(TRIES):
            status, events, text = await self.ask_events(path, body)
            if not _overloaded(status, decoded(text)):
                break
            await asyncio.sleep(AGAIN_S)
        if status != 200 or not events or events[-1][1] != "[DONE]":
            end = events[-1][1] if events else text
            raise GuaranteeError(
                f"POST {path}, stream: {status}, ends with {end[-200:]!r}",
                "200 and server-sent events that end with `data: [DONE]`",
                describe_request(path, body),
            )
        chunks = [(at, decoded(data)) for at, data in events[:-1]]
        if error := next((chunk for _, chunk in chunks if "choices" not in chunk), None):
            raise GuaranteeError(
                f"a chunk {str(error)[:200]}", "choices in every chunk", describe_request(path, body)
            )
        return chunks


def _overloaded(status: int, answer: dict[str, Any]) -> bool:
    """Returns True if the request must be repeated later."""
    error = answer.get("error")
    return status == 503 and isinstance(error, dict) and error.get("code") == ErrorCode.OVERLOADED


async def poll(condition: Callable[[], Any], within_s: float) -> float | None:
    """Waits until `await condition()` is true. Returns the seconds, or None after `within_s`."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not await condition():
        if loop.time() - started > within_s:
            return None
        await asyncio.sleep(0.01)
    return loop.time() - started
