"""Refuses invalid or too long text, and tokenizes without blocking the event loop.

`generation_routes` and vLLM's routes call it. Tokenizing a megabyte of text takes seconds of CPU.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from contracts.errors import ContractError, ErrorCode
from contracts.limits import MAX_TEXT_CHARACTERS

T = TypeVar("T")

TOKEN_CHARACTERS = 128  # length of the longest tokens of usual vocabularies: runs of spaces
ALWAYS_TOKENISED = 2**16  # characters that are tokenized whatever the context; it takes about 0.1 s
SHORT = 2**12  # characters whose tokenization takes less time than waking a thread
_threads = ThreadPoolExecutor(2, thread_name_prefix="tokenise")


async def tokenised(function: Callable[..., T], *args: Any, characters: int) -> T:
    """Returns the result of `function`. Runs it in a thread if it tokenizes many `characters`."""
    if characters <= SHORT:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *args)


def check_text(what: str, text: str, max_context: int, param: str = "prompt") -> int:
    """Returns the number of characters. Raises ContractError if they are too many or not valid Unicode."""
    most = min(MAX_TEXT_CHARACTERS, max(ALWAYS_TOKENISED, TOKEN_CHARACTERS * max_context))
    if len(text) > most:
        raise ContractError(
            ErrorCode.CONTEXT_LENGTH,
            f"{what}: {len(text)} characters cannot fit into the context of {max_context} tokens",
            param,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair at character {error.start}"
        raise ContractError(ErrorCode.INVALID_REQUEST, f"{what}: {half}", param) from error
    return len(text)


def conversation_text(messages: Sequence[Any], tools: Sequence[Any] | None, max_context: int) -> str:
    """Returns messages and tools as JSON. Raises ContractError for an invalid role or content."""
    for number, message in enumerate(messages):
        why = _why_no_message(message)
        if why:
            raise ContractError(ErrorCode.INVALID_REQUEST, f"messages.{number}: {why}", f"messages[{number}]")
    try:
        text = json.dumps([messages, tools or []], ensure_ascii=False)
    except RecursionError as error:
        why = "messages or tools: nested too deeply"
        raise ContractError(ErrorCode.INVALID_REQUEST, why, "messages") from error
    check_text("messages and tools", text, max_context, "messages")
    return text


def _why_no_message(message: Any) -> str | None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "it has no role, which is text"
    content = message.get("content")
    if isinstance(content, list):
        return None if all(isinstance(part, dict) for part in content) else "a part of content is no object"
    return None if content is None or isinstance(content, str) else "content: text, parts or null"
