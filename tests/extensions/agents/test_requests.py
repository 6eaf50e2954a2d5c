"""What each field of a request does: honoured, overridden and counted, or refused by name."""

import json

import pytest

from extensions.agents.endpoint.requests import RefusedError, read_request

BASE = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


def read(**fields):
    return read_request(json.dumps(BASE | fields).encode())


@pytest.mark.parametrize(
    "field",
    [
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "user"),
        *("metadata", "store", "service_tier", "verbosity", "reasoning_effort", "prompt_cache_key"),
        *("safety_identifier", "parallel_tool_calls", "logprobs"),
    ],
)
def test_what_the_run_decides_is_overridden_and_counted(field):
    assert read(**{field: 1}).counts == {f"overridden_{field}": 1}
    assert read(**{field: None}).counts == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"1": 5}),
        ("functions", [{"name": "add"}]),
        ("audio", {"voice": "alloy"}),
        ("guided_json", {}),
        ("chat_template_kwargs", {"enable_thinking": True}),
        ("no_such_field", 1),
    ],
)
def test_what_changes_the_distribution_is_refused_by_name(field, value):
    with pytest.raises(RefusedError) as error:
        read(**{field: value})
    assert (error.value.code, error.value.param, error.value.status) == ("unsupported_parameter", field, 400)
    assert error.value.body["error"]["param"] == field


@pytest.mark.parametrize("fields", [{"n": 1}, {"response_format": {"type": "text"}}, {"logit_bias": {}}])
def test_what_changes_nothing_is_taken(fields):
    assert read(**fields).counts == {}


def test_what_is_honoured():
    asked = read(
        max_tokens=7,
        max_completion_tokens=5,
        stop=["a", "b"],
        stream=True,
        stream_options={"include_usage": True},
        tools=[TOOL],
    )
    assert (asked.model, asked.max_tokens, asked.stop, asked.streams) == ("any", 5, ("a", "b"), True)
    assert asked.shows_usage and asked.tools == [TOOL] and read(stop="x").stop == ("x",)
    assert read(tools=[TOOL], tool_choice="none").tools is None


def test_a_forced_call_is_an_offered_one_or_refused():
    named = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", named):
        assert read(tools=[TOOL], tool_choice=choice).counts == {"forced_calls": 1}
        with pytest.raises(RefusedError, match="forced call"):
            read_request(json.dumps(BASE | {"tools": [TOOL], "tool_choice": choice}).encode(), True)


def test_messages_become_what_templates_read():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": None, "reasoning": "why"},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]
    assert read(messages=given).messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "me"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_request"),
        ({"messages": [{"content": "no role"}]}, "messages[0]", "invalid_request"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0]", "unsupported_parameter"),
        ({"messages": [{"role": "assistant", "content": "pre"}]}, "messages", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0]", "invalid_request"),
        ({"max_tokens": 0}, "max_tokens", "invalid_request"),
        ({"stop": [""]}, "stop", "invalid_request"),
        ({"tools": [{"name": "add"}]}, "tools", "invalid_request"),
    ],
)
def test_a_wrong_value_is_refused_by_name(fields, param, code):
    with pytest.raises(RefusedError) as error:
        read(**fields)
    assert (error.value.param, error.value.code) == (param, code)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"\xff", b"[" * 100_000, b'{"a":' * 70 + b"1" + b"}" * 70])
def test_a_body_that_is_no_request_is_refused(raw):
    with pytest.raises(RefusedError):
        read_request(raw)
