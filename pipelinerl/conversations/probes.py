"""Tries if conversations can be converted to tokens and back, on a few made-up ones, before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from contracts.end_tokens import special_ids
from contracts.records import unsampled
from contracts.tool_calls import FunctionCall, ToolCall
from contracts.tool_templates import NAME
from pipelinerl.conversations.base import Conversation, Conversations, Option, Parsed
from pipelinerl.conversations.shown_tokens import shown
from pipelinerl.conversations.template import TemplateConversations

BEFORE = 12  # tokens that are shown before a difference
USER = {"role": "user", "content": "the problem"}
NEXT = {"role": "user", "content": "the next message"}
CALL = ToolCall(id="call_1", function=FunctionCall(name=NAME, arguments='{"argument": "value"}'))
CALLED = Parsed("", "", calls=[CALL])
RESULT = {"role": "tool", "tool_call_id": CALL.id, "name": NAME, "content": "the result"}
PARAMETERS = {"type": "object", "properties": {"argument": {"type": "string"}}}
FUNCTION = {"name": NAME, "description": "a tool", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]


def probes(with_tools: bool, options: Mapping[str, Option]) -> Iterator[Conversation]:
    """Yields made-up conversations of one turn and of several."""
    yield Conversation([USER], None, options)
    yield Conversation([USER], None, options).then(Parsed("", "the answer"), [NEXT])
    yield Conversation([USER], None, options).then(Parsed("", "the answer", "the thought"), [NEXT])
    if with_tools:
        yield Conversation([USER], TOOLS, options)
        yield Conversation([USER], TOOLS, options).then(CALLED, [RESULT])


def difference(
    conversations: Conversations, template: TemplateConversations, asked: Conversation
) -> str | None:
    """Returns the two prompts as text if they differ, or None.

    The first one may also contain the header of the answer's channel, as gpt-oss' does. A conversation that
    the template refuses differs in nothing.
    """
    try:
        expected = template.render(asked)
    except ValueError:
        return None
    found = conversations.render(asked)
    tokenizer = template.renderer.tokenizer
    if found[: len(expected)] == expected and _is_header(found[len(expected) :], special_ids(tokenizer)):
        return None
    pairs = enumerate(zip(found, expected, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(found), len(expected)))
    begin = max(0, same - BEFORE)
    own = shown(tokenizer, expected[begin:])
    return f"{shown(tokenizer, found[begin:])} where the template writes {own}"


def _is_header(tokens: list[int], special: frozenset[int]) -> bool:
    return not tokens or (tokens[0] in special and tokens[-1] in special)


def fault_of_tools(
    conversations: Conversations, template: TemplateConversations, options: Mapping[str, Option]
) -> str | None:
    """Returns why calls of tools cannot be made and answered, or None."""
    asked = Conversation([USER], TOOLS, options)
    renderer = template.renderer
    try:
        prompt = conversations.render(asked)
        sampled = _sampled(template, asked, prompt)
        completion = unsampled(prompt, sampled[: _end(sampled, conversations) + 1])
        answer = conversations.parse(asked, completion)
        if [call.function for call in answer.calls] != [CALL.function]:
            text = shown(renderer.tokenizer, completion.token_ids.tolist())
            return f"a call of the template is not parsed as a call: {text}"
        if conversations.extend(asked, completion, answer, [RESULT]) is None:
            return "a tool's result cannot follow the sampled tokens of a call"
    except ValueError as error:
        return str(error)
    return None


def _sampled(template: TemplateConversations, asked: Conversation, prompt: list[int]) -> list[int]:
    """Returns a call as the template writes it after the prompt, with a thought if the prompt begins one."""
    renderer = template.renderer
    found = []
    for answer in (CALLED, replace(CALLED, thought="the thought")):
        messages = [template.with_thought(message) for message in asked.then(answer, [RESULT]).messages]
        whole = renderer.render(messages, TOOLS, opens=False, options=asked.options)
        found.append(renderer.ids(whole, next(renderer.private())))
        if found[-1][: len(prompt)] == prompt:
            return found[-1][len(prompt) :]
    return found[0][len(prompt) :]


def _end(sampled: list[int], conversations: Conversations) -> int:
    """Returns the index of the first token that ends an answer."""
    found = [i for i, token in enumerate(sampled) if token in conversations.stops]
    if not found:
        raise ValueError("no token ends the template's calls")
    return found[0]
