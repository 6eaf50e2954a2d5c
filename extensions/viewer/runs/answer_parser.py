"""Parses the answers of a run as the run did: by the model's template, or by the renderer that it names."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from contracts.records import Completion
from contracts.support.messages import one_line
from contracts.tool_templates import TOOL
from pipelinerl.clients.conversations import build_conversations
from pipelinerl.config import ResolvedModel
from pipelinerl.conversations.base import Conversation, Conversations, Parsed

# What conf/config.yaml names. Of a run, which may be another user's, no other class is imported.
FINDS_RENDERERS = {"_target_": "extensions.renderers.of_model.renderer_of_model"}


class AnswerParser:
    """Parses the answers of one run. Thread-safe.

    model: section of the run's saved configuration. directory, tokenizer: of the model.
    """

    def __init__(self, model: Mapping[str, Any], directory: str, tokenizer: Tokenizer):
        self._model = model
        self._directory = directory
        self._tokenizer = tokenizer
        self._of = functools.cache(self._built)

    def parse(self, completion: Completion, with_tools: bool) -> Parsed:
        """Returns the parsed answer. Raises ValueError if it cannot be parsed here.

        with_tools: True if the problem had tools. Which ones is not recorded, so arguments have no types.
        """
        conversations = self._of(with_tools)
        if isinstance(conversations, str):
            raise ValueError(conversations)
        options = self._model.get("template") or {}
        asked = Conversation([], [TOOL] if with_tools else None, options)
        return conversations.parse(asked, completion)

    def _built(self, with_tools: bool) -> Conversations | str:
        """Returns the conversations of the run, or why there are none."""
        try:
            model = ResolvedModel.model_validate(self._model)
            is_known = model.renderer == "template" or model.renderers is None
            decodes = is_known or (model.renderer == "auto" and not with_tools)
            if not decodes and model.renderers.model_dump(by_alias=True) != FINDS_RENDERERS:
                return f"the viewer does not import model.renderers={model.renderers.target} of a run"
            tokenizer = _Decoder(self._tokenizer) if decodes else None  # it loads transformers'
            return build_conversations(model, with_tools, self._directory, tokenizer)
        except Exception as error:  # of any class: what the run names may not be installed here
            return one_line(error)


class _Decoder:
    """What templates need of a tokenizer to parse text, without transformers, whose import takes seconds."""

    all_special_ids = ()  # those of `added_tokens_decoder` are all

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        return self._tokenizer.get_added_tokens_decoder()

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int | None]:
        return [self._tokenizer.token_to_id(token) for token in tokens]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
