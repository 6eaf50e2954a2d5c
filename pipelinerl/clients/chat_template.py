"""Renders the tokens between two answers of a conversation, so that sampled tokens are never re-tokenised.

If each turn rendered the complete conversation, its tokens could differ from the sampled ones. The same text
may have other token ids, and the template may drop the model's thinking. So only the new messages are
rendered, and appended to the sampled ids.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from contracts.end_tokens import end_tokens_in
from contracts.records import Completion, unsampled
from contracts.tool_calls import ToolCall, for_template, parse_tool_calls
from pipelinerl.clients.rendering import Messages, Renderer, Tools, said, with_marks
from pipelinerl.clients.special_text import found_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)
THOUGHT_TAG = re.compile(r"</?think>")  # the model may write it, though it may be a special token
QUESTION = {"role": "user", "content": "question"}  # placeholder


class ChatTemplate:
    """The chat template of the model's tokenizer, which is loaded at first use. Thread-safe.

    Its methods raise ValueError if the template refuses the messages or cannot render them exactly.
    """

    def __init__(self, path: str, tokenizer: PreTrainedTokenizerBase | None = None):
        self.path = path
        self.renderer = Renderer(path, tokenizer)
        self._one_at_a_time = threading.Lock()
        self._logged: set[str] = set()  # special tokens of which a warning has been logged

    def spells_special(self, messages: Messages) -> bool:
        """Returns True if a message spells a special token, which a server would parse as one."""
        found = found_in(messages, self.renderer.special)
        if found and found not in self._logged:
            self._logged.add(found)
            log.warning("a message contains %s, which the model is given as plain text", found)
        return found is not None

    def prompt_of_special(self, messages: Messages, tools: Tools = None) -> list[int] | None:
        """Returns the prompt if a text spells a special token, or None if a server can render it."""
        return self.prompt(messages, tools) if self.spells_special(messages) else None

    def prompt(self, messages: Messages, tools: Tools = None) -> list[int]:
        """Returns the prompt of a conversation as servers render it, but without special tokens in texts."""
        with self._one_at_a_time:
            mark = next(self.renderer.private(messages))
            text = self.renderer.render(self.renderer.separated(messages, mark), tools)
            return self.renderer.ids(text, mark)

    def text(self, completion: Completion) -> str:
        """Returns the text of a completion, as a server decodes it."""
        with self._one_at_a_time:
            return self._text(completion)

    def _text(self, completion: Completion) -> str:
        return self.renderer.tokenizer.decode(completion.token_ids.tolist(), skip_special_tokens=True)

    def answered(self, messages: Messages, answer: str) -> Completion:
        """Returns a given answer as a completion, including the token that ends it, without
        log-probabilities.

        Raises ValueError if the template changes the answer, or changes the prompt when it is answered, or if
        the answer spells a special token.
        """
        with self._one_at_a_time:
            return self._answered(messages, answer)

    def _answered(self, messages: Messages, answer: str) -> Completion:
        renderer = self.renderer
        if found := found_in(THOUGHT_TAG.sub(" ", answer), renderer.special):
            raise ValueError(f"the answer contains {found}, which only the chat template may write")
        private = renderer.private(messages, answer)
        place = next(private)
        mark = next(private)
        asked = renderer.separated(messages, mark)
        prompt = renderer.render(asked)
        after = renderer.render([*asked, said(place)], opens=False).rpartition(place)[2]
        whole = renderer.render([*asked, said(answer)], opens=False)
        endings = [end for end in (answer + after, answer.strip() + after) if whole.endswith(end)]
        if not whole.startswith(prompt):
            raise ValueError(f"the chat template of {self.path} changes a prompt when it is answered")
        if not endings:
            raise ValueError(f"the chat template of {self.path} changes the answer")
        whole = whole.removesuffix(endings[0]) + answer + after  # undoes the template's strip
        sampled = renderer.ids(whole.removeprefix(prompt), mark)
        until = sampled.index(renderer.end) if renderer.end in sampled else len(sampled)
        return unsampled(renderer.ids(prompt, mark), [*sampled[:until], renderer.end])

    def prompt_after(
        self, completion: Completion, messages: Messages, calls: Sequence[ToolCall] = ()
    ) -> list[int]:
        """Returns the prompt of the next turn: the completion's prompt and tokens, followed by `messages`.

        calls: the completion's tool calls; if there are none, they are parsed from its text.
        """
        with self._one_at_a_time:
            new = self._after(completion, messages, calls)
            return [*completion.prompt_token_ids.tolist(), *completion.token_ids.tolist(), *new]

    def _after(self, completion: Completion, messages: Messages, calls: Sequence[ToolCall]) -> list[int]:
        """Returns the tokens after those of the completion.

        Some templates render tool results only after calls, and others no text beside calls. So the answer is
        rendered first with its calls, then without.
        """
        made = self._calls(completion, messages, calls)
        if made:
            with suppress(ValueError):
                return self._after_answer(completion, messages, made)
        return self._after_answer(completion, messages, [])

    def _calls(self, completion: Completion, messages: Messages, calls: Sequence[ToolCall]) -> list[dict]:
        """Returns the completion's calls in the templates' format, if the messages have their results."""
        ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
        if not ids:
            return []
        if not calls:
            _, found = parse_tool_calls(self._text(completion))
            named = zip(found, ids, strict=False)
            calls = [call.model_copy(update={"id": name or call.id}) for call, name in named]
        (answer,) = for_template([{"tool_calls": [call.model_dump() for call in calls]}])
        return answer["tool_calls"]

    def _after_answer(self, completion: Completion, messages: Messages, calls: list[dict]) -> list[int]:
        renderer = self.renderer
        private = renderer.private(messages, calls)
        place = next(private)
        mark = next(private)
        answer = said(place) | ({"tool_calls": renderer.separated(calls, mark)} if calls else {})
        marked, marks = with_marks(messages, private)
        _, answered, shown = renderer.render([QUESTION, answer, *marked]).partition(place)
        if not answered or place in shown or not all(each in shown for each in marks):
            raise ValueError(f"the chat template of {self.path} cannot continue from sampled tokens")
        before = renderer.ids(shown[: min(map(shown.index, marks), default=None)], mark)
        text = renderer.render([QUESTION, answer, *renderer.separated(list(messages), mark)])
        new = renderer.ids(text.partition(place)[2], mark)
        return new[self._begin(completion, before, bool(calls)) :]

    def _begin(self, completion: Completion, before: list[int], called: bool) -> int:
        """Returns the number of tokens in `before`, which precede the first new message, that it has sampled.

        These are its calls, if it `called`, and the token that ended it.
        """
        last = completion.token_ids.tolist()[-1:]
        if completion.finish_reason == "stop" and last[0] in before:
            end = before.index(last[0])
            if called or not self.renderer.tokenizer.decode(before[:end]).strip():
                return end + 1
        if not called:
            return 0
        ends = end_tokens_in(self.path, self.renderer.tokenizer)
        end = next((i for i, token_id in enumerate(before) if token_id in ends), None)
        if end is None:
            raise ValueError(f"the chat template of {self.path} does not end a turn after calls")
        return end
