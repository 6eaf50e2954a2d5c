"""Builds OpenAI-compatible responses with the contract's fields, from deltas, for `generation_routes`.

This module does no I/O.
"""

import random
import struct
import time
from binascii import b2a_base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from contracts.commitments import FORMAT
from contracts.inference import TokenDelta
from contracts.tool_calls import ToolCall, parse_tool_calls
from inference_adapters.call_reader import CallReader
from inference_adapters.choices import Chat, Choice, Text, spans
from inference_adapters.detokenizer import Detokenizer
from inference_adapters.logprob_forms import Classic, Likeliest, TokenTexts
from inference_adapters.stop_strings import StopText, text_before

LogprobsForm = Literal["none", "content", "classic", "arrays"]
NAMES = random.Random()  # for response ids: os.urandom would cost a thread switch for each


@dataclass(frozen=True)
class Form:
    """The response format that a request asks for."""

    api: type[Chat] | type[Text]
    model: str
    logprobs: LogprobsForm = "none"
    stops: tuple[str, ...] = ()
    with_calls: bool = False  # True if tool calls are parsed from the text
    with_usage: bool = False  # True if a stream ends with its usage


class Completion:
    """Builds the response to one request, complete or in chunks. Choice j of prompt p has index p * n + j."""

    def __init__(self, form: Form, prompts: list[list[int]], n: int, texts: TokenTexts):
        self.form = form
        self.texts = texts
        self.decode = decode = texts.decode
        self.prompts = prompts
        self.n = n
        count = len(prompts) * n
        self.choices = [Choice() for _ in range(count)]
        self._detokenizers = [Detokenizer(decode) for _ in range(count)]
        self._call_readers = [CallReader() for _ in range(count)] if form.with_calls else []
        self._stop_texts = [StopText(form.stops) for _ in range(count)] if form.stops else []
        self._classics = [Classic(decode) for _ in range(count)] if form.logprobs == "classic" else []
        name = f"{form.api.id_prefix}-{NAMES.getrandbits(128):032x}"
        self._head = {"id": name, "created": int(time.time()), "model": form.model}
        self._alike = all(prompt == prompts[0] for prompt in prompts)
        self._started = False

    def append_delta(self, index: int, delta: TokenDelta) -> None:
        self.choices[index].extend(delta)

    def whole(self) -> dict:
        """Returns the complete response."""
        return self._with(range(len(self.choices))) | {"usage": self.usage()}

    def alone(self, index: int) -> dict:
        """Returns a response that contains only the completed choice `index`."""
        return self._with([index])

    def _with(self, indices: Sequence[int]) -> dict:
        choices = [self._whole(index, self.choices[index]) for index in indices]
        head = self._head | {"object": self.form.api.whole_object} | self._common_prompt()
        return head | {"choices": choices}

    def _whole(self, index: int, choice: Choice) -> dict:
        text = self.decode(choice.token_ids)
        if self.form.stops:
            before = text_before(text, self.form.stops)
            text = text if before is None else before
        calls = []
        if self.form.with_calls:
            text, calls = parse_tool_calls(text)
        reason = _reason(choice.finish_reason, calls)
        body = self._choice(index, choice.token_ids, choice.logprobs, choice.top_logprobs, reason)
        return self.form.api.whole(text, calls) | body | _at_end(choice) | self._own_prompt(index)

    def usage(self) -> dict[str, int]:
        """Returns the token counts. A prompt counts once, however many choices it has."""
        sampled = sum(len(choice.token_ids) for choice in self.choices)
        prompt = sum(map(len, self.prompts))
        return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}

    def chunks(self, index: int, delta: TokenDelta) -> list[dict]:
        """Returns the next chunks of a stream.

        The first chunk of a choice has its prompt ids, and the last one its version spans. A chat with
        several choices begins with an empty chunk of each, because OpenAI's client expects them in order.
        """
        found = []
        if not self._started and self.form.api is Chat and self.n > 1:
            found = [self._chunk(i, TokenDelta([], [], [])) for i in range(self.n)]
        return [*found, self._chunk(index, delta)]

    def _chunk(self, index: int, delta: TokenDelta) -> dict:
        choice = self.choices[index]
        first_of_choice = not choice.begun
        choice.begun = True
        choice.extend(delta)
        last = delta.finish_reason is not None
        text = self._detokenizers[index].decode_next(delta.token_ids, last)
        if self._stop_texts:
            text = self._stop_texts[index].read_text(text, last)
        calls = []
        if self._call_readers:
            text, calls = self._call_readers[index].read_text(text, last)
        reason = _reason(delta.finish_reason, calls)
        body = self._choice(index, list(delta.token_ids), delta.logprobs, delta.top_logprobs, reason)
        if last:
            body |= _at_end(choice)
        if first_of_choice:
            body |= self._own_prompt(index)
        chunk = self._head | {"object": self.form.api.chunk_object}
        if not self._started:
            chunk |= self._common_prompt()
            self._started = True
        if self.form.with_usage:
            chunk["usage"] = None
        return chunk | {"choices": [self.form.api.delta(text, calls, first_of_choice) | body]}

    def usage_chunk(self) -> dict:
        """Returns the last chunk of a stream whose usage was requested."""
        return self._head | {"object": self.form.api.chunk_object, "choices": [], "usage": self.usage()}

    def _common_prompt(self) -> dict[str, Any]:
        return self._prompt(0) if self._alike else {}

    def _own_prompt(self, index: int) -> dict[str, Any]:
        return self._prompt(index // self.n) if len(self.prompts) > 1 else {}

    def _prompt(self, number: int) -> dict[str, Any]:
        if self.form.logprobs == "arrays":
            return {"prompt_token_ids_base64": int32(self.prompts[number])}
        return {"prompt_token_ids": self.prompts[number]}

    def _choice(
        self,
        index: int,
        token_ids: list[int],
        logprobs: Sequence[float],
        likeliest: Likeliest,
        finish_reason: str | None,
    ) -> dict:
        choice = {"index": index, "finish_reason": finish_reason}
        if self.form.logprobs == "arrays":
            return choice | {"token_ids_base64": int32(token_ids), "logprobs_base64": float32(logprobs)}
        form = None
        if self.form.logprobs == "content":
            form = self.texts.content(token_ids, logprobs, likeliest)
        elif self._classics:
            form = self._classics[index].next(token_ids, logprobs, likeliest)
        return choice | {"token_ids": token_ids, "logprobs": form}


def _reason(finish_reason: str | None, calls: Sequence[ToolCall]) -> str | None:
    return "tool_calls" if calls and finish_reason == "stop" else finish_reason


def _at_end(choice: Choice) -> dict[str, Any]:
    """Returns the fields of a choice that come when it is complete."""
    fields: dict[str, Any] = {"weight_versions": spans(choice.versions)}
    if choice.commitments is not None:
        fields["commitments"] = {"format": FORMAT, "proofs": _base64(choice.commitments)}
    return fields


def int32(values: Sequence[int]) -> str:
    """Returns token ids as base64 of little-endian int32."""
    return _base64(struct.pack(f"<{len(values)}i", *values))


def float32(values: Sequence[float]) -> str:
    """Returns log-probabilities as base64 of little-endian float32."""
    return _base64(struct.pack(f"<{len(values)}f", *values))


def _base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()
