"""Requests a completion from one server, and checks the answer against the contract.

Failures are classified by their cause; the callers decide how to react.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from contracts.records import Array, Completion, VersionSpan
from contracts.tool_calls import ToolCall
from pipelinerl.clients.answer_bodies import TooLongAnswerError, body_of
from pipelinerl.clients.completion_bodies import read_body
from pipelinerl.clients.faults import (
    ConnectionBrokenError,
    InvalidResponseError,
    RequestRefusedError,
    ServerFailedError,
    ServerUnavailableError,
)
from pipelinerl.clients.server_proof import UnprovenServerError
from pipelinerl.domains.base import Answer

Prompt = list[dict[str, str]] | list[int]  # a conversation, or token ids

TOO_LONG = "context_length_exceeded"  # another server would refuse it too
OF_THE_REQUEST = {TOO_LONG, "invalid_request", "unsupported_parameter", "bad_request", "too_large"}
COMPLETE = {"stop", "length", "tool_calls"}  # finish reasons of complete completions
LONGEST_PROMPT = 2**24  # bytes of an answer for the ids of the longest prompt
HIGHEST_LOGPROB = 0.01  # above 0 because of rounding
LOWEST_LOGPROB = -1e4  # vLLM reports -inf as -9999
BYTES_OF_A_TOKEN = 2**10  # bytes of an answer for a token's id, log-probability and text
LONGEST_CODE = 64  # characters of an error's code; it becomes part of a rollout's status
TAKES_NOTHING = {429, 502, 503, 504}  # status codes of a server or proxy that did not start the request


@dataclass(frozen=True)
class Sampling:
    model: str
    temperature: float
    max_tokens: int
    seed: int | None = None  # None = sampling is not reproducible
    vocabulary: int | None = None  # size of the model's vocabulary; None = unknown
    stop: tuple[str, ...] = ()  # texts at which the server ends an answer
    models: tuple[tuple[str, str], ...] = ()  # (URL, name of the model there), where the name is another

    def model_at(self, url: str) -> str:
        return dict(self.models).get(url, self.model)


@dataclass(frozen=True)
class Asked:
    """A request for completions of a prompt.

    tools: the tools that the model may call, in a conversation.
    arrays: True to request tokens in arrays, which the server must declare as a capability.
    """

    prompt: Prompt
    sampling: Sampling
    tools: list[dict] | None = None
    arrays: bool = False

    @property
    def route(self) -> str:
        return "/v1/chat/completions" if self._is_chat else "/v1/completions"

    def body(self, url: str) -> dict[str, Any]:
        """Returns the JSON body of a request to a server for one completion."""
        body = {
            "model": self.sampling.model_at(url),
            "messages" if self._is_chat else "prompt": self.prompt,
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "logprobs": True,
        }
        if self.sampling.seed is not None:
            body["seed"] = self.sampling.seed
        if self.sampling.stop:
            body["stop"] = list(self.sampling.stop)
        if self.tools:
            body["tools"] = self.tools
        if self.arrays:
            body["arrays"] = True
        return body

    @property
    def longest_answer(self) -> int:
        """The largest size of an answer with one completion, in bytes."""
        return LONGEST_PROMPT + BYTES_OF_A_TOKEN * self.sampling.max_tokens

    def answer_of(self, raw: bytes, url: str) -> Answer:
        """Returns the server's answer, parsed and checked. Raises a ServerFaultError if it is invalid."""
        try:
            answer = _answer(raw, self.sampling, url, self.arrays)
            _check_prompt(answer.completion.prompt_token_ids, None if self._is_chat else self.prompt)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise InvalidResponseError(f"{url} answered outside the contract: {error}") from error
        if answer.completion.finish_reason not in COMPLETE:
            raise ServerUnavailableError("abort")
        return answer

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.prompt[0], dict)


async def complete(session: aiohttp.ClientSession, url: str, asked: Asked) -> Answer:
    """Returns one completion of a server. Raises RequestRefusedError or a ServerFaultError."""
    with connection_faults():
        async with session.post(url + asked.route, json=asked.body(url), allow_redirects=False) as response:
            status = response.status
            body = await body_of(response, asked.longest_answer)
    if status != 200:
        raise error_of(status, body)
    return asked.answer_of(body, url)


@contextmanager
def connection_faults() -> Iterator[None]:
    """Converts connection errors of the block to ServerFaultErrors."""
    try:
        yield
    except TooLongAnswerError as error:
        raise InvalidResponseError(str(error)) from error
    except UnprovenServerError as error:
        raise ServerUnavailableError("unproven") from error
    except (aiohttp.ClientConnectorError, TimeoutError) as error:
        raise ServerUnavailableError("connection") from error
    except aiohttp.ClientError as error:
        raise ConnectionBrokenError("connection") from error


def error_of(status: int, body: bytes) -> Exception:
    """Returns the error of an answer whose status is not 200."""
    code = _code(body) or str(status)
    if status in TAKES_NOTHING:
        return ServerUnavailableError(code)
    if 400 <= status < 500 and code in OF_THE_REQUEST:
        return RequestRefusedError(code)
    return ServerFailedError(code)


def _code(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Refusal).error.code[:LONGEST_CODE]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


# --- the wire -----------------------------------------------------------------------------------


class _Error(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Error


def _answer(raw: bytes, sampling: Sampling, url: str, arrays: bool) -> Answer:
    body = read_body(raw, arrays)
    completion = Completion(
        prompt_token_ids=body.prompt_token_ids,
        token_ids=body.token_ids,
        logprobs=body.logprobs,
        spans=body.spans,
        temperature=sampling.temperature,
        # A completion that ends with a tool call has ended like any other.
        finish_reason="stop" if body.finish_reason == "tool_calls" else body.finish_reason,
        server=url,
    )
    _check(completion, sampling)
    return Answer(body.text or "", completion, [ToolCall.model_validate(call) for call in body.tool_calls])


def _check_prompt(prompt: Array, sent: Prompt | None) -> None:
    """Raises ValueError if the answer's prompt differs from `sent`, or is empty.

    sent: the ids that were sent; None for a conversation, which the server tokenises.
    """
    if not len(prompt):
        raise ValueError("a prompt of no tokens")
    if sent is not None and prompt.tolist() != sent:
        raise ValueError("another prompt than the one that was sent")


def _check(completion: Completion, sampling: Sampling) -> None:
    sampled = len(completion.token_ids)
    if sampled > sampling.max_tokens:
        raise ValueError(f"{sampled} tokens, where {sampling.max_tokens} were asked for")
    if not sampled and completion.finish_reason in COMPLETE:
        raise ValueError("no token, not even the one that stopped it")
    if len(completion.logprobs) != sampled:
        raise ValueError(f"{len(completion.logprobs)} log-probabilities for {sampled} tokens")
    if not ((completion.logprobs <= HIGHEST_LOGPROB) & (completion.logprobs >= LOWEST_LOGPROB)).all():
        raise ValueError("a number among the log-probabilities is none")
    largest = max(completion.prompt_token_ids.max(initial=0), completion.token_ids.max(initial=0))
    if sampling.vocabulary is not None and largest >= sampling.vocabulary:
        raise ValueError(f"the token id {largest}, where the model has {sampling.vocabulary} tokens")
    _check_spans(completion.spans, sampled)


def _check_spans(spans: list[VersionSpan], sampled: int) -> None:
    ends = [0, *(span.end for span in spans)]
    starts = [*(span.start for span in spans), sampled]
    versions = [span.version for span in spans]
    if ends != starts or ends != sorted(ends) or versions != sorted(versions):
        raise ValueError(f"weight_versions do not cover {sampled} tokens once, in order: {spans}")
