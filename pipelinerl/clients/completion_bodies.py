"""Parses the bodies of completions, with tokens in lists, or in arrays if the request asked for arrays."""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from contracts.records import Array, VersionSpan

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Version = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Token(msgspec.Struct, gc=False):
    logprob: float


class _Logprobs(msgspec.Struct, gc=False):
    content: list[_Token]


class _Span(msgspec.Struct, gc=False):
    version: Version
    start: int
    end: int


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _AnyChoice(msgspec.Struct, kw_only=True):
    weight_versions: list[_Span]
    finish_reason: str
    message: _Message | None = None  # of the chat route
    text: str | None = None  # of the text route


class _ListChoice(_AnyChoice):
    token_ids: list[TokenId]
    logprobs: _Logprobs


class _ArrayChoice(_AnyChoice):
    token_ids_base64: bytes
    logprobs_base64: bytes


class _ListBody(msgspec.Struct):
    prompt_token_ids: list[TokenId]
    choices: Annotated[list[_ListChoice], msgspec.Meta(min_length=1)]


class _ArrayBody(msgspec.Struct):
    prompt_token_ids_base64: bytes
    choices: Annotated[list[_ArrayChoice], msgspec.Meta(min_length=1)]


_lists = msgspec.json.Decoder(_ListBody)
_arrays = msgspec.json.Decoder(_ArrayBody)


@dataclass(frozen=True)
class CompletionBody:
    """The first choice of a response."""

    prompt_token_ids: Array  # [P] int32
    token_ids: Array  # [T] int32
    logprobs: Array  # [T] float32
    spans: list[VersionSpan]
    finish_reason: str
    text: str | None
    tool_calls: list[dict[str, Any]]


def read_body(raw: bytes, arrays: bool) -> CompletionBody:
    """Returns the parsed body. Raises msgspec.MsgspecError, ValueError or RecursionError."""
    return _in_arrays(raw) if arrays else _in_lists(raw)


def _in_lists(raw: bytes) -> CompletionBody:
    body = _lists.decode(raw)
    choice = body.choices[0]
    prompt = np.array(body.prompt_token_ids, dtype=np.int32)
    token_ids = np.array(choice.token_ids, dtype=np.int32)
    logprobs = np.array([token.logprob for token in choice.logprobs.content], dtype=np.float32)
    return _of(choice, prompt, token_ids, logprobs)


def _in_arrays(raw: bytes) -> CompletionBody:
    body = _arrays.decode(raw)
    choice = body.choices[0]
    prompt = np.frombuffer(body.prompt_token_ids_base64, dtype="<i4")
    token_ids = np.frombuffer(choice.token_ids_base64, dtype="<i4")
    logprobs = np.frombuffer(choice.logprobs_base64, dtype="<f4")
    if min(prompt.min(initial=0), token_ids.min(initial=0)) < 0:
        raise ValueError("a token id below 0")
    return _of(choice, prompt, token_ids, logprobs)


def _of(choice: _AnyChoice, prompt: Array, token_ids: Array, logprobs: Array) -> CompletionBody:
    message = choice.message or _Message(choice.text)
    return CompletionBody(
        prompt,
        token_ids,
        logprobs,
        [VersionSpan(span.version, span.start, span.end) for span in choice.weight_versions],
        choice.finish_reason,
        message.content,
        message.tool_calls or [],
    )
