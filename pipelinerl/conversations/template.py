"""Converts between messages and tokens by the model's own chat template.

The tokens between two answers are rendered alone, and appended to the sampled ids. If each turn rendered the
complete conversation, the same text could have other token ids than the sampled ones.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from contracts.end_tokens import end_tokens_in
from contracts.records import Completion
from pipelinerl.conversations.answered import answered
from pipelinerl.conversations.base import Conversation, Messages, Parsed
from pipelinerl.conversations.continued import tokens_after
from pipelinerl.conversations.rendering import BEGIN, Renderer
from pipelinerl.conversations.special_text import found_in
from pipelinerl.conversations.thoughts import CLOSING, parsed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
MOST_KEPT = 64  # prompts, because the rollouts of a group share one
LONGEST_BEGIN = 16  # tokens at the end of a prompt that begin a thought
ASKED = {"role": "user", "content": "question"}  # placeholder


class TemplateConversations:
    """The chat template of a model's tokenizer, which is loaded at first use. Thread-safe.

    Calls are in Hermes' format (`contracts.tool_calls`), thoughts in `<think>`. Texts that spell special
    tokens remain text.

    keeps_thoughts: True if a user's message follows the earlier thoughts, even if the template strips them.
    """

    def __init__(
        self, path: str, tokenizer: PreTrainedTokenizerBase | None = None, keeps_thoughts: bool = False
    ):
        self.path = path
        self.renderer = Renderer(path, tokenizer)
        self._keeps_thoughts = keeps_thoughts
        self._one_at_a_time = threading.RLock()
        self._logged: set[str] = set()  # special tokens of which a warning has been logged
        self._prompts: OrderedDict[str, list[int]] = OrderedDict()  # by their conversation
        self._strips: dict[str, bool] = {}  # by the options, with tools and without

    @cached_property
    def stops(self) -> Sequence[int]:
        return end_tokens_in(self.path, self.renderer.tokenizer)

    def render(self, conversation: Conversation) -> list[int]:
        with self._one_at_a_time:
            shown = [conversation.messages, conversation.tools, dict(conversation.options)]
            name = json.dumps(shown, default=repr)
            if name not in self._prompts:
                self._prompts[name] = self._rendered(conversation)
                if len(self._prompts) > MOST_KEPT:
                    self._prompts.popitem(last=False)
            self._prompts.move_to_end(name)
            return list(self._prompts[name])

    def parse(self, asked: Conversation, completion: Completion, text: str | None = None) -> Parsed:
        with self._one_at_a_time:
            if text is None or self.renderer.tags:
                text = self.renderer.text_of(completion.token_ids.tolist())
            begin = self.renderer.tokenizer.decode(completion.prompt_token_ids[-LONGEST_BEGIN:].tolist())
            return parsed(text, begin.rstrip().endswith(BEGIN), bool(asked.tools))

    def extend(
        self, asked: Conversation, completion: Completion, answer: Parsed, messages: Messages
    ) -> list[int] | None:
        with self._one_at_a_time:
            if self.must_begin_again(asked, answer, messages):
                return None
            so_far = [*completion.prompt_token_ids.tolist(), *completion.token_ids.tolist()]
            if answer.thinks and completion.finish_reason != "stop":
                so_far += self.renderer.ids(CLOSING, next(self.renderer.private()))
            return so_far + tokens_after(self.renderer, asked, completion, answer, messages, self.stops)

    def answered(self, asked: Conversation, answer: str) -> Completion:
        with self._one_at_a_time:
            shown = [self.with_thought(message) for message in asked.messages]
            return answered(self.renderer, replace(asked, messages=shown), answer)

    def spells_special(self, messages: Messages) -> bool:
        """Returns True if a message spells a special token, and logs the first one."""
        found = found_in(messages, self.renderer.special)
        if found and found not in self._logged:
            self._logged.add(found)
            log.warning("a message contains %s, which the model is given as plain text", found)
        return found is not None

    def strips_thoughts(self, asked: Conversation) -> bool:
        """Returns True if the template removes a thought that a user's message follows."""
        name = json.dumps([dict(asked.options), bool(asked.tools)], sort_keys=True)
        if name not in self._strips:
            private = self.renderer.private()
            thought = next(private)
            answer = Parsed("", next(private), thought)
            messages = [ASKED, self.with_thought(answer.message), ASKED]
            text = self.renderer.render(messages, asked.tools, options=asked.options)
            self._strips[name] = thought not in text
        return self._strips[name]

    def must_begin_again(self, asked: Conversation, answer: Parsed, messages: Messages) -> bool:
        """Returns True if the template strips earlier thoughts from the next prompt, and may."""
        if self._keeps_thoughts or not asked.is_text:
            return False
        if all(message["role"] != "user" for message in messages):
            return False
        thought = answer.thought or asked.thoughts_of_this_turn
        return bool(thought) and self.strips_thoughts(asked)

    def with_thought(self, message: dict) -> dict:
        """Returns a message with its thought where the template reads it: in a field, or else in the text."""
        thought = message.get("reasoning_content")
        template = str(self.renderer.tokenizer.chat_template)
        if not thought or "reasoning_content" in template:
            return message
        if "message.thinking" in template:
            return message | {"thinking": thought}
        content = f"<think>\n{thought}{CLOSING}{message['content']}"
        return {name: value for name, value in message.items() if name != "reasoning_content"} | {
            "content": content
        }

    def _rendered(self, conversation: Conversation) -> list[int]:
        unknown = sorted(conversation.options.keys() - {*self.renderer.options})
        if unknown:
            reads = self.renderer.offered_options
            raise ValueError(f"the model's chat template reads no option {unknown[0]}; it reads {reads}")
        messages = [self.with_thought(message) for message in conversation.messages]
        self.spells_special(messages)
        mark = next(self.renderer.private(messages))
        shown = self.renderer.separated(messages, mark)
        text = self.renderer.render(shown, conversation.tools, options=conversation.options)
        return self.renderer.ids(text, mark)
