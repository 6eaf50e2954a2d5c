"""Joins the text parts of a message, and refuses parts of other types.

It is called for every engine, before the chat template, because templates format lists of parts differently.
"""

from collections.abc import Sequence
from typing import Any

from contracts.errors import ContractError, ErrorCode

BETWEEN = "\n"  # between two text parts, as vLLM joins them


def with_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with strings as content. Raises ContractError for a part that is not text."""
    joined = []
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            message = message | {"content": _joined(content, f"messages[{number}].content")}
        joined.append(message)
    return joined


def _joined(parts: list[Any], where: str) -> str:
    return BETWEEN.join(_text(part, f"{where}[{number}]") for number, part in enumerate(parts))


def _text(part: dict[str, Any], where: str) -> str:
    what = part.get("type")
    if what == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if what == "text" or not isinstance(what, str):
        why = f'{where}: a part of content is {{"type": "text", "text": "..."}}'
        raise ContractError(ErrorCode.INVALID_REQUEST, why, where)
    why = f"{where}: {what}: this server takes text alone"
    raise ContractError(ErrorCode.UNSUPPORTED_PARAMETER, why, where)
