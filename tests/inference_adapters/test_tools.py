"""Calls of tools in chat completions, as OpenAI's client gets them."""

import json

import openai
import pytest

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, "</a>"]}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(echo) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{echo.url}/v1", api_key="none", max_retries=0)


def say(client: openai.OpenAI, text: str | list[dict], **options):
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    asked = {"model": "scripted", "messages": messages, "max_tokens": 500, "tools": [TOOL], "logprobs": True}
    return client.chat.completions.create(**asked | options)


def test_a_call_is_read_out_of_the_text_and_its_tokens_stay(client):
    choice = say(client, f"Well: {CALL}").choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Well: "
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "f") and call.id
    assert json.loads(call.function.arguments) == {"x": [1, "</a>"]}
    sampled = "".join(item.token for item in choice.logprobs.content)
    assert sampled == f"Well: {CALL}" and len(choice.token_ids) == len(sampled) + 1
    assert say(client, CALL).choices[0].message.content is None


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("no call", {}),
        ("<tool_call>{</tool_call>", {}),
        (CALL, {"tool_choice": "none"}),
        (CALL, {"tools": []}),
    ],
)
def test_what_is_no_call_is_text(client, text, options):
    choice = say(client, text, **options).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


@pytest.mark.parametrize(
    "text", ["no call", "a < b <tool", f"Well: {CALL}", f"{CALL}{CALL} .", "a <tool_call>{</tool_call>"]
)
def test_a_stream_says_what_the_whole_answer_says(client, text):
    whole = say(client, text).choices[0]
    chunks = [chunk.choices[0] for chunk in say(client, text, stream=True)]
    pieces = [chunk.delta.content for chunk in chunks]
    assert "".join(pieces) == (whole.message.content or "")
    assert not any(chunk.delta.tool_calls for chunk in chunks[:-1])
    streamed, called = chunks[-1].delta.tool_calls or [], whole.message.tool_calls or []
    assert [call.index for call in streamed] == list(range(len(called)))
    assert [call.function.model_dump() for call in streamed] == [c.function.model_dump() for c in called]
    assert chunks[-1].finish_reason == whole.finish_reason
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == whole.token_ids
    if text == f"Well: {CALL}":
        assert pieces[:6] == list("Well: ")  # what cannot be a call does not wait


def test_a_template_gets_the_arguments_of_an_earlier_call_as_an_object(client):
    call = say(client, CALL).choices[0].message.tool_calls[0].model_dump()
    reply = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert say(client, reply).choices[0].message.content == '{"x": [1, "</a>"]}'
    for arguments, says in (("{", "JSONDecodeError"), ("[" * 100_000, "RecursionError")):
        call["function"]["arguments"] = arguments
        with pytest.raises(openai.BadRequestError, match=f"messages: {says}"):
            say(client, reply)


def test_what_the_server_does_not_do_is_refused(client):
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            say(client, CALL, tool_choice=choice)
    with pytest.raises(openai.BadRequestError, match="tools: this server takes only"):
        client.completions.create(model="scripted", prompt="a", extra_body={"tools": [TOOL]})
