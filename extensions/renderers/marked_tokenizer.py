"""A tokenizer for the library `renderers` that does not read special tokens in the texts of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelinerl.conversations.base import Messages
from pipelinerl.conversations.rendering import Renderer


class MarkedTokenizer:
    """The tokenizer of a model. Texts of `marked` messages are encoded as text, whatever they spell."""

    def __init__(self, renderer: Renderer):
        self._renderer = renderer
        self._mark = next(renderer.private())

    def marked(self, messages: Messages) -> list[dict[str, Any]]:
        """Returns the messages with a mark between the characters of special tokens."""
        self._mark = next(self._renderer.private(list(messages)))
        return self._renderer.separated(list(messages), self._mark)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._renderer.ids(text, self._mark)

    def decode(self, token_ids: Sequence[int], **options: Any) -> str:
        return self._renderer.tokenizer.decode(token_ids, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # among them the call that returns offsets, which the mark would shift
            raise AttributeError(name)
        return getattr(self._renderer.tokenizer, name)
