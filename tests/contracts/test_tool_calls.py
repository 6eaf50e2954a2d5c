"""Calls in sampled text, whatever is sampled."""

import json

import pytest

from contracts.tool_calls import for_template, parse_tool_calls
from contracts.tool_templates import knows_tools
from inference_adapters.call_reader import CallReader
from tests.tool_model import TEMPLATE, tool_tokenizer

ADD = '<tool_call>\n{"name": "add", "arguments": {"x": "é\\n"}}\n</tool_call>'


def found(text: str) -> tuple[str, list[tuple[str, object]]]:
    content, calls = parse_tool_calls(text)
    assert all(call.type == "function" for call in calls) and len({call.id for call in calls}) == len(calls)
    return content, [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("no call", "no call", []),
        (ADD, "", [("add", {"x": "é\n"})]),
        (f"I add.\n{ADD} and more", "I add.\n", [("add", {"x": "é\n"})]),
        (ADD + ADD, "", [("add", {"x": "é\n"})] * 2),
        ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", {})]),  # the end came in its place
        ('<tool_call>{"name": "f", "arguments": "3"}</tool_call>', "", [("f", "3")]),
    ],
)
def test_what_is_called(text, content, calls):
    assert found(text) == (content, calls)


@pytest.mark.parametrize(
    ("thought", "answer"),
    [
        (f"<think>maybe {ADD} no</think>", "The answer is 3"),
        (f"<think>{ADD}", ""),  # cut short
        (f"the prompt began it {ADD}</think>", "3"),
        (f"<think>a <think>b</think> {ADD}</think>", "3"),
        ("<think>I write <think> and <tool_call></think>", f"so {ADD}"),
        ("<think>one</think>", f"{ADD}<think>{ADD}</think>"),
    ],
)
def test_a_call_in_a_thought_is_text_and_the_text_after_it_is_kept(thought, answer):
    before, called, _ = answer.partition(ADD)
    calls = [("add", {"x": "é\n"})] * bool(called)
    assert found(thought + answer) == (thought + before, calls)
    reader = CallReader()
    pieces = [reader.read_text(c, False)[0] for c in thought + answer]
    last, streamed = reader.read_text("", last=True)
    assert ("".join(pieces) + last, len(streamed)) == (thought + before, len(calls))


@pytest.mark.parametrize("call", [
     "", "{", "3", "[1]", '{"name": "f"}', '{"name": 3, "arguments": {}}',
     '{"name": "f", "arguments": {}} and', '{"name": "\\ud800", "arguments": {}}',
     '{"name": "f", "arguments": "\\ud800"}', '{"name": "f", "arguments": ' + "9" * 5000 + "}",
     '{"name": "f", "arguments": {"x": NaN}}', "[" * 100_000,
])  # fmt: skip
def test_a_malformed_call_makes_all_of_it_text(call):
    text = f"so: <tool_call>{call}</tool_call>"
    assert found(text) == (text, [])
    assert found(ADD + text) == (ADD + text, [])


def test_a_template_gets_arguments_as_objects():
    _, calls = parse_tool_calls(ADD)
    asked = {"role": "user", "content": "x"}
    reply = {"role": "assistant", "content": None, "tool_calls": [call.model_dump() for call in calls]}
    user, assistant = for_template([asked, reply])
    assert user == asked and assistant["tool_calls"][0]["function"]["arguments"] == {"x": "é\n"}
    assert for_template([assistant]) == [assistant]
    reply["tool_calls"][0]["function"]["arguments"] = "{"
    with pytest.raises(ValueError, match="Expecting"):
        for_template([reply])


def test_a_template_knows_tools_where_it_shows_them_and_writes_calls_that_can_be_read():
    tokenizer = tool_tokenizer()
    assert knows_tools(tokenizer)
    for changes in [
        ("{%- for tool in tools -%}", "{%- for tool in [] -%}"),
        ("<tool_call>", "<call>"),
        ("{%- for message in messages -%}", "{{ raise_exception('no') }}{%- for message in messages -%}"),
    ]:
        tokenizer.chat_template = TEMPLATE.replace(*changes)
        assert not knows_tools(tokenizer), changes
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_special_tokens({"additional_special_tokens": ["<tool_call>"]})
    assert not knows_tools(tokenizer)
