"""Answers in OpenAI's format, read by its own client's types."""

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from contracts.tool_calls import FunctionCall, ToolCall
from extensions.agents.endpoint.answers import END, message_of, streamed, whole
from pipelinerl.conversations.base import Parsed
from pipelinerl.domains.base import Answer
from tests.builders import completion

CALL = ToolCall(id="call_1", function=FunctionCall(name="add", arguments='{"a": 1}'))


def answer(text="said", calls=(), thought="", reason="stop"):
    parsed = Parsed(f"<think>{thought}</think>{text}" if thought else text, text, thought, calls=calls)
    return Answer(parsed.text, completion([1, 2], [3, 4, 5], finish_reason=reason), calls, None, parsed)


def test_calls_are_in_the_message_with_the_text_before_them():
    said = message_of(answer("", [CALL]))
    assert said == {"role": "assistant", "content": None, "tool_calls": [CALL.model_dump()]}
    body = ChatCompletion.model_validate_json(whole(answer("", [CALL]), said, "any"))
    (call,) = body.choices[0].message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("call_1", "add", '{"a": 1}')
    assert body.choices[0].finish_reason == "tool_calls" and body.usage.total_tokens == 5


@pytest.mark.parametrize("shows_usage", [False, True])
def test_a_stream_says_the_same_and_ends_in_its_last_part(shows_usage):
    said = message_of(answer("first", [CALL]))
    begin, end = streamed(answer("first", [CALL]), said, "any", shows_usage)
    assert end.endswith(END)
    events = [each for each in (begin + end.removesuffix(END)).decode().split("\n\n") if each]
    chunks = [ChatCompletionChunk.model_validate(json.loads(each.removeprefix("data: "))) for each in events]
    assert chunks[0].choices[0].delta.content == "first"
    (call,) = chunks[0].choices[0].delta.tool_calls
    assert (call.index, call.id, call.function.name) == (0, "call_1", "add")
    assert chunks[1].choices[0].finish_reason == "tool_calls"
    assert [each.usage.prompt_tokens for each in chunks[2:]] == ([2] if shows_usage else [])


def test_a_thought_and_the_text_that_ends_an_answer_are_not_its_content():
    said = message_of(answer("one. two. three", thought="why"), ["two", "."])
    assert said == {"role": "assistant", "content": "one", "reasoning_content": "why"}


@pytest.mark.parametrize(
    ("reason", "said"), [("stop", "stop"), ("length", "length"), ("repetition", "length")]
)
def test_why_an_answer_ended(reason, said):
    ended = answer(reason=reason)
    body = ChatCompletion.model_validate_json(whole(ended, message_of(ended), "any"))
    assert body.choices[0].finish_reason == said
