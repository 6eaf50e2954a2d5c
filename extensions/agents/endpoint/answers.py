"""Answers in OpenAI's format: as one object, or as the events of a stream."""

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from pipelinerl.domains.base import Answer

END = b"data: [DONE]\n\n"


def message_of(answer: Answer, stop: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the answer as a message: its text without the thought, the thought, and the calls.

    stop: the texts that end it, which are not in the message.
    """
    content = answer.parsed.content if answer.parsed else answer.text
    for text in stop:
        content = content.partition(text)[0]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if answer.thought:
        message["reasoning_content"] = answer.thought
    if answer.tool_calls:
        message["content"] = content or None
        message["tool_calls"] = [call.model_dump() for call in answer.tool_calls]
    return message


def whole(answer: Answer, message: dict[str, Any], model: str) -> bytes:
    """Returns the body of an answer."""
    choice = {"index": 0, "message": message, "finish_reason": reason_of(answer), "logprobs": None}
    body = head("chat.completion", model) | {"choices": [choice], "usage": usage_of(answer)}
    return json.dumps(body).encode()


def streamed(answer: Answer, message: dict[str, Any], model: str, shows_usage: bool) -> list[bytes]:
    """Returns the events of an answer, in two parts: what it says, and that it has ended."""
    begin = head("chat.completion.chunk", model)
    delta = dict(message)
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    said, ended = (
        event(begin | {"choices": [{"index": 0, "delta": part, "finish_reason": reason}]})
        for part, reason in ((delta, None), ({}, reason_of(answer)))
    )
    usage = event(begin | {"choices": [], "usage": usage_of(answer)}) if shows_usage else b""
    return [said, ended + usage + END]


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def head(kind: str, model: str) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def reason_of(answer: Answer) -> str:
    if answer.tool_calls:
        return "tool_calls"
    return "stop" if answer.completion.finish_reason == "stop" else "length"


def usage_of(answer: Answer) -> dict[str, int]:
    prompt = len(answer.completion.prompt_token_ids)
    sampled = len(answer.completion.token_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
