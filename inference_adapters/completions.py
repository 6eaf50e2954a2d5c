"""Builds OpenAI-compatible responses, with the fields that the contract adds to them.

It is called by `generation_routes` and is pure: deltas in, dicts out. The chat and the text API differ only
in the names of a few fields (`Chat`, `Text`).
"""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts.inference import TokenDelta, VersionSpan
from contracts.tool_calls import OPENING, ToolCall, parse_tool_calls

Decode = Callable[[Sequence[int]], str]


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
    """One completion, as far as it has been sampled."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str | None = None

    def extend(self, delta: TokenDelta) -> None:
        """Adds newly sampled tokens."""
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.versions += delta.versions
        self.finish_reason = delta.finish_reason


class Detokenizer:
    """Decodes a growing completion in pieces, which together are the text of all its tokens.

    A token may hold part of a character, and may read differently after another. So each piece is the
    difference between two decodings of a window that starts at the previous piece. A window that ends within
    a character (decoded to U+FFFD) waits for the rest.
    """

    def __init__(self, decode: Decode):
        self._decode = decode
        self._settled: list[int] = []  # tokens of the last piece: context for the next
        self._open: list[int] = []  # tokens whose text has not been returned yet

    def decode_next(self, token_ids: Sequence[int], last: bool) -> str:
        """Returns the text of the new tokens, which may be empty unless they are the last."""
        self._open += token_ids
        before = self._decode(self._settled)
        after = self._decode(self._settled + self._open)
        if after.endswith("\ufffd") and not last:
            return ""
        self._settled = self._open or self._settled
        self._open = []
        return after[len(before) :]


class CallReader:
    """Separates the text of a growing completion from the tool calls in it."""

    def __init__(self) -> None:
        self._text = ""
        self._emitted = 0

    def read_text(self, piece: str, last: bool) -> tuple[str, list[ToolCall]]:
        """Returns the text that cannot be part of a call; for the last piece also the rest, or the calls."""
        self._text += piece
        content, calls = parse_tool_calls(self._text) if last else (self._text[: self._call_begins()], [])
        start = self._emitted
        self._emitted = len(content)
        return content[start:], calls

    def _call_begins(self) -> int:
        """Returns the index at which a call begins, or may begin: a token can end within the tag."""
        text = self._text
        if OPENING in text:
            return text.index(OPENING)
        could = range(max(0, len(text) - len(OPENING) + 1), len(text) + 1)
        return next(i for i in could if OPENING.startswith(text[i:]))


def spans(versions: Sequence[int]) -> list[dict]:
    """Returns the half-open spans of equal versions: [3, 3, 4] -> [{version 3, 0 ...

    2}, {version 4, 2 ... 3}].
    """
    found: list[VersionSpan] = []
    for position, version in enumerate(versions):
        if found and found[-1].version == version:
            found[-1].end = position + 1
        else:
            found.append(VersionSpan(version=version, start=position, end=position + 1))
    return [span.model_dump() for span in found]


def logprob_content(token_ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> dict:
    content = []
    for token_id, logprob in zip(token_ids, logprobs, strict=True):
        token = decode([token_id])
        # The text of a token that is part of a character does not tell its bytes.
        known = None if "\ufffd" in token else list(token.encode())
        content.append({"token": token, "bytes": known, "logprob": logprob, "top_logprobs": []})
    return {"content": content}


class Completion:
    """Builds the response to one request, complete or in chunks. `with_calls` reads tool calls in it."""

    def __init__(
        self,
        form: type[Chat] | type[Text],
        model: str,
        prompt_token_ids: list[int],
        n: int,
        logprobs: bool,
        decode: Decode,
        with_calls: bool = False,
    ):
        self.form = form
        self.logprobs = logprobs
        self.decode = decode
        self.with_calls = with_calls
        self.prompt_token_ids = prompt_token_ids
        self.choices = [Choice() for _ in range(n)]
        self._detokenizers = [Detokenizer(decode) for _ in range(n)]
        self._call_readers = [CallReader() for _ in range(n)]
        name = f"{form.id_prefix}-{uuid.uuid4().hex}"
        self._head = {"id": name, "created": int(time.time()), "model": model}
        self._started = False

    def append_delta(self, index: int, delta: TokenDelta) -> None:
        """Adds newly sampled tokens to the choice `index`."""
        self.choices[index].extend(delta)

    def whole(self) -> dict:
        """Returns the complete response."""
        choices = []
        for index, choice in enumerate(self.choices):
            text = self.decode(choice.token_ids)
            calls = []
            if self.with_calls:
                text, calls = parse_tool_calls(text)
            reason = _reason(choice.finish_reason, calls)
            body = self._choice(index, choice.token_ids, choice.logprobs, reason)
            choices.append(self.form.whole(text, calls) | body | {"weight_versions": spans(choice.versions)})
        sampled = sum(len(choice.token_ids) for choice in self.choices)
        prompt = len(self.prompt_token_ids)
        usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
        head = self._head | {"object": self.form.whole_object, "prompt_token_ids": self.prompt_token_ids}
        return head | {"choices": choices, "usage": usage}

    def chunk(self, index: int, delta: TokenDelta) -> dict:
        """Returns the next chunk of a stream.

        The first chunk carries the prompt, and the last one of each choice its spans.
        """
        choice = self.choices[index]
        first_of_choice = not choice.token_ids
        choice.extend(delta)
        last = delta.finish_reason is not None
        text = self._detokenizers[index].decode_next(delta.token_ids, last)
        calls = []
        if self.with_calls:
            text, calls = self._call_readers[index].read_text(text, last)
        reason = _reason(delta.finish_reason, calls)
        body = self._choice(index, list(delta.token_ids), delta.logprobs, reason)
        if last:
            body["weight_versions"] = spans(choice.versions)
        chunk = self._head | {"object": self.form.chunk_object}
        if not self._started:
            chunk["prompt_token_ids"] = self.prompt_token_ids
            self._started = True
        return chunk | {"choices": [self.form.delta(text, calls, first_of_choice) | body]}

    def _choice(
        self, index: int, token_ids: list[int], logprobs: Sequence[float], finish_reason: str | None
    ) -> dict:
        content = logprob_content(token_ids, logprobs, self.decode) if self.logprobs else None
        return {
            "index": index,
            "token_ids": token_ids,
            "logprobs": content,
            "finish_reason": finish_reason,
        }


def _reason(finish_reason: str | None, calls: Sequence[ToolCall]) -> str | None:
    return "tool_calls" if calls and finish_reason == "stop" else finish_reason
