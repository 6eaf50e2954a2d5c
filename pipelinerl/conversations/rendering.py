"""Renders conversations by a model's chat template and tokenizes them, without special tokens in texts.

Used by `TemplateConversations` and the launcher's checks. Must not know turns or sampled tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contracts.end_tokens import end_tokens_in, special_ids, turn_end_ids
from contracts.support.messages import one_line
from contracts.tool_calls import OPENING, for_template
from pipelinerl.conversations.base import Messages, Option, Tools
from pipelinerl.conversations.options import offered, options_of, template_arguments
from pipelinerl.conversations.special_text import pattern_of, private_characters, separated, special_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


BEGIN = "<think>"
END = "</think>"
CLOSED = "</tool_call>"


class Renderer:
    """The tokenizer of a model directory, loaded at first use, and its chat template.

    Its methods raise ValueError if the template refuses the messages or cannot render them exactly.
    """

    def __init__(self, path: str, tokenizer: PreTrainedTokenizerBase | None = None):
        self.path = path
        if tokenizer is not None:
            self.tokenizer = tokenizer

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path, local_files_only=True)

    @cached_property
    def special(self) -> re.Pattern[str]:
        """A pattern of the special tokens' texts. Most models' tokenizers need not be loaded for it."""
        texts = special_texts(Path(self.path))
        if texts is None:
            texts = self.tokenizer.convert_ids_to_tokens(sorted(special_ids(self.tokenizer)))
        return pattern_of(texts)

    @cached_property
    def end(self) -> int:
        """The token that ends an answer in the chat template, or else the model's end token."""
        ends = turn_end_ids(self.tokenizer) or end_tokens_in(self.path, self.tokenizer)
        if not ends:
            raise ValueError(f"no file in {self.path} names a token that ends an answer")
        return ends[0]

    @property
    def offered_options(self) -> str:
        """The options for a message."""
        return ", ".join(offered(self.tokenizer.get_chat_template(tools=[{}]))) or "none"

    @cached_property
    def options(self) -> list[str]:
        """The options that the templates read; a tokenizer may have another template for tools."""
        read = {*options_of(self.tokenizer.get_chat_template())}
        return sorted(read | {*options_of(self.tokenizer.get_chat_template(tools=[{}]))})

    @cached_property
    def tags(self) -> frozenset[int]:
        """The tags of thoughts and calls that are special tokens, which servers leave out of texts."""
        found = self.tokenizer.convert_tokens_to_ids([BEGIN, END, OPENING, CLOSED])
        return special_ids(self.tokenizer) & {*found}

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of sampled ids, without special tokens except for tags."""
        if not self.tags:
            return self.tokenizer.decode(ids, skip_special_tokens=True)
        special = special_ids(self.tokenizer) - self.tags
        return self.tokenizer.decode([token_id for token_id in ids if token_id not in special])

    def private(self, *used: Any) -> Iterator[str]:
        """Yields characters that are neither in the template nor in a text within `used`."""
        return private_characters(self.tokenizer.chat_template, *used)

    def separated(self, value: Any, mark: str) -> Any:
        """Returns `value` with `mark` between the characters of special tokens; `ids` removes the mark."""
        return separated(value, self.special, mark)

    def render(
        self,
        messages: Messages,
        tools: Tools = None,
        opens: bool = True,
        options: Mapping[str, Option] | None = None,
    ) -> str:
        """Returns the text of a conversation; with `opens`, including the start of the next answer.

        Most templates write the arguments of calls as objects, and some only as the text of JSON.
        """
        given = {"tools": tools, "tokenize": False, "add_generation_prompt": opens}
        given |= template_arguments(options or {})
        try:
            return self.tokenizer.apply_chat_template(for_template(messages), **given)
        except Exception as error:  # templates raise errors of any class to refuse messages
            if any(message.get("tool_calls") for message in messages):
                with suppress(Exception):
                    return self.tokenizer.apply_chat_template(with_arguments_as_text(messages), **given)
            raise ValueError(f"the chat template of {self.path} refuses: {one_line(error)}") from error

    def ids(self, text: str, mark: str) -> list[int]:
        """Returns the token ids of a rendered text. Characters separated by `mark` do not form a token."""
        parts = [self._tokenized(part) for part in text.split(mark)]
        ids = [token_id for part in parts for token_id in part]
        if len(parts) > 1:
            whole = self._tokenized(text.replace(mark, ""))
            if self.tokenizer.decode(ids) != self.tokenizer.decode(whole):
                raise ValueError(f"the tokenizer of {self.path} cannot write a special token as text")
        return ids

    def _tokenized(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def with_arguments_as_text(messages: Messages) -> list[dict[str, Any]]:
    """Returns the messages with the arguments of calls as JSON."""
    return [
        message | {"tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": text}}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def with_marks(messages: Messages, private: Iterator[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the messages with a private character in place of each text, and these characters."""
    marks = []
    marked = []
    for message in messages:
        if isinstance(message.get("content"), str):
            marks.append(next(private))
            message = message | {"content": marks[-1]}
        marked.append(message)
    return marked, marks
