"""One choice of a completion, and its representation in OpenAI's chat and text APIs (`Chat`, `Text`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite

from contracts.errors import ContractError, ErrorCode
from contracts.inference import TokenDelta
from contracts.tool_calls import ToolCall


class Chat:
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    @staticmethod
    def whole(text: str, calls: Sequence[ToolCall]) -> dict:
        message = {"role": "assistant", "content": text}
        if calls:
            message |= {"content": text or None, "tool_calls": [call.model_dump() for call in calls]}
        return {"message": message}

    @staticmethod
    def delta(text: str, calls: Sequence[ToolCall], first: bool) -> dict:
        delta = {"role": "assistant", "content": text} if first else {"content": text}
        if calls:
            delta["tool_calls"] = [{"index": i} | call.model_dump() for i, call in enumerate(calls)]
        return {"delta": delta}


class Text:
    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    @staticmethod
    def whole(text: str, calls: Sequence[ToolCall]) -> dict:
        return {"text": text}

    @staticmethod
    def delta(text: str, calls: Sequence[ToolCall], first: bool) -> dict:
        return {"text": text}


@dataclass
class Choice:
    """The tokens of one choice that have been sampled so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[Sequence[tuple[int, float]]] = field(default_factory=list)
    commitments: bytes | None = None
    finish_reason: str | None = None
    begun: bool = False  # True if a chunk of it has been sent

    def extend(self, delta: TokenDelta) -> None:
        """Adds newly sampled tokens. Raises ContractError if a log-probability is not finite."""
        if not isfinite(sum(delta.logprobs)):
            raise ContractError(
                ErrorCode.ENGINE_FAILED, "the engine sampled a token of no finite log-probability"
            )
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.versions += delta.versions
        self.top_logprobs += delta.top_logprobs
        self.commitments = delta.commitments
        self.finish_reason = delta.finish_reason


def spans(versions: Sequence[int]) -> list[dict]:
    """Returns half-open spans of equal versions: for [3, 3, 4], version 3 in [0, 2) and 4 in [2, 3)."""
    found = []
    start = 0
    for version, alike in groupby(versions):
        end = start + sum(1 for _ in alike)
        found.append({"version": version, "start": start, "end": end})
        start = end
    return found
