"""Renders the tokens between a sampled answer and the next one, without the answer."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from contracts.end_tokens import turn_end_ids
from contracts.records import Completion
from contracts.tool_calls import for_template
from pipelinerl.conversations.base import Conversation, Messages, Parsed
from pipelinerl.conversations.rendering import Renderer, said, with_marks

QUESTION = {"role": "user", "content": "question"}  # placeholder


def tokens_after(
    renderer: Renderer,
    asked: Conversation,
    completion: Completion,
    answer: Parsed,
    messages: Messages,
    stops: Collection[int],
) -> list[int]:
    """Returns the tokens after those of the completion, up to the beginning of the next answer.

    Some templates render tool results only after calls, and others no text beside calls. So the answer is
    rendered first with its calls, then without. Raises ValueError if the template cannot continue.
    """
    ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    between = _Between(renderer, replace(asked, messages=messages), completion, stops)
    if ids and answer.calls:
        with suppress(ValueError):
            return between.tokens(_calls(answer, ids))
    return between.tokens([])


def _calls(answer: Parsed, ids: Sequence[str | None]) -> list[dict]:
    """Returns the calls in the templates' format, with the ids to which the results refer."""
    named = [*ids, *[None] * len(answer.calls)]
    calls = [
        call.model_copy(update={"id": name or call.id})
        for call, name in zip(answer.calls, named, strict=False)
    ]
    (message,) = for_template([{"tool_calls": [call.model_dump() for call in calls]}])
    return message["tool_calls"]


class _Between:
    """The part of a rendered conversation between two answers. new: the messages of that part."""

    def __init__(self, renderer: Renderer, new: Conversation, completion: Completion, stops: Collection[int]):
        self._renderer = renderer
        self._new = new
        self._completion = completion
        self._stops = stops

    def tokens(self, calls: list[dict]) -> list[int]:
        """Returns the new tokens after an answer with these calls."""
        renderer = self._renderer
        messages = list(self._new.messages)
        private = renderer.private(messages, calls)
        place = next(private)
        mark = next(private)
        answer = said(place) | ({"tool_calls": renderer.separated(calls, mark)} if calls else {})
        marked, marks = with_marks(messages, private)
        _, answered, shown = self._rendered([QUESTION, answer, *marked]).partition(place)
        if not answered or place in shown or not all(each in shown for each in marks):
            raise ValueError(f"the chat template of {renderer.path} cannot continue from sampled tokens")
        before = renderer.ids(shown[: min(map(shown.index, marks), default=None)], mark)
        text = self._rendered([QUESTION, answer, *renderer.separated(messages, mark)])
        new = renderer.ids(text.partition(place)[2], mark)
        return new[self._sampled(before, bool(calls)) :]

    def _rendered(self, messages: Messages) -> str:
        return self._renderer.render(messages, self._new.tools, options=self._new.options)

    def _sampled(self, before: list[int], called: bool) -> int:
        """Returns the number of tokens in `before`, which precede the first new message, that were sampled.

        These are the answer's calls, if it `called`, and the token that ended it. The model may end by
        another end token than the template, which then stands in its place.
        """
        last = self._completion.token_ids.tolist()[-1:]
        if self._completion.finish_reason == "stop":
            own = last if last[0] in before else []
            if not own and last[0] in self._stops:
                own = turn_end_ids(self._renderer.tokenizer)
            end = _first(before, own)
            if end is not None and (called or not self._renderer.tokenizer.decode(before[:end]).strip()):
                return end + 1
        if not called:
            return 0
        end = _first(before, self._stops)
        if end is None:
            raise ValueError(f"the chat template of {self._renderer.path} does not end a turn after calls")
        return end


def _first(tokens: Sequence[int], wanted: Collection[int]) -> int | None:
    """Returns the index of the first wanted token, or None."""
    return next((i for i, token in enumerate(tokens) if token in wanted), None)
