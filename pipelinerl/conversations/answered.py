"""Renders an answer that was given, not sampled, as a chat template writes it."""

import re

from contracts.records import Completion, unsampled
from pipelinerl.conversations.base import Conversation
from pipelinerl.conversations.rendering import Renderer, said
from pipelinerl.conversations.special_text import found_in

THOUGHT_TAG = re.compile(r"</?think>")  # the model may write it, though it may be a special token


def answered(renderer: Renderer, asked: Conversation, answer: str) -> Completion:
    """Returns the answer as a completion. Its tokens end with the one that ends an answer.

    Raises ValueError if the template changes the answer, or changes the prompt when it is answered, or if the
    answer spells a special token.
    """
    if found := found_in(THOUGHT_TAG.sub(" ", answer), renderer.special):
        raise ValueError(f"the answer contains {found}, which only the chat template may write")
    messages = list(asked.messages)
    private = renderer.private(messages, answer)
    place = next(private)
    mark = next(private)
    shown = renderer.separated(messages, mark)
    given = {"tools": asked.tools, "options": asked.options}
    prompt = renderer.render(shown, **given)
    after = renderer.render([*shown, said(place)], opens=False, **given).rpartition(place)[2]
    whole = renderer.render([*shown, said(answer)], opens=False, **given)
    endings = [end for end in (answer + after, answer.strip() + after) if whole.endswith(end)]
    if not whole.startswith(prompt):
        raise ValueError(f"the chat template of {renderer.path} changes a prompt when it is answered")
    if not endings:
        raise ValueError(f"the chat template of {renderer.path} changes the answer")
    whole = whole.removesuffix(endings[0]) + answer + after  # undoes the template's strip
    sampled = renderer.ids(whole.removeprefix(prompt), mark)
    until = sampled.index(renderer.end) if renderer.end in sampled else len(sampled)
    return unsampled(renderer.ids(prompt, mark), [*sampled[:until], renderer.end])
