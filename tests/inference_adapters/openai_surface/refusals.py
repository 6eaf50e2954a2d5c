"""Checks that fields without effect are accepted, and that unsupported ones are refused by name."""

from typing import Any

import openai
import pytest

from inference_adapters.neutral_values import LABELS, NEUTRAL
from tests.inference_adapters.openai_surface.client import Surface, check, refused


@check
def neutral_values_change_nothing(server: Surface) -> None:
    every = {name: values[0] for name, values in NEUTRAL.items()} | dict.fromkeys(LABELS, "x")
    every |= {"best_of": 1, "n": 1, "tool_choice": "auto", "seed": None, "top_p": None, "logprobs": None}
    others = {name: values[-1] for name, values in NEUTRAL.items()}
    plain = server.chat()
    for fields in (every, others, dict.fromkeys([*every, "no_such_field"], None)):
        answer = server.chat(**fields)
        assert answer.choices[0].message == plain.choices[0].message, fields
        assert answer.usage == plain.usage
    plain_text = server.text()
    for fields in (every, others):
        assert server.text(**fields).choices[0].text == plain_text.choices[0].text


@check
def what_is_asked_and_not_done_is_refused_by_name(server: Surface) -> None:
    asked: dict[str, Any] = {"store": True, "metadata": {"a": "b"}, "modalities": ["audio"]}
    if server.strict:  # vLLM supports some of these
        asked |= {"presence_penalty": 0.5, "frequency_penalty": -1, "logit_bias": {"5": 1}, "min_p": 0.1}
        asked |= {"response_format": {"type": "json_object"}, "parallel_tool_calls": False}
        asked |= {"repetition_penalty": 1.1, "ignore_eos": True, "echo": True, "best_of": 3}
    for name, value in asked.items():
        error = refused(server.chat, **{name: value})
        assert (error.code, error.param) == ("unsupported_parameter", name), error
        assert name in error.message


@check
def a_value_of_another_type_is_not_neutral(server: Surface) -> None:
    if server.strict:
        wrong = {
            "presence_penalty": False,
            "store": 0,
            "logit_bias": [],
            "response_format": "text",
            "user": 5,
        }
        for name, value in wrong.items():
            assert refused(server.chat, **{name: value}).param == name


@check
def errors_are_openais(server: Surface) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        server.chat(model="no-such-model")
    assert (unknown.value.param, unknown.value.type) == ("model", "invalid_request_error")
    assert refused(server.chat, temperature=-1).param == "temperature"
    if server.strict:
        assert (
            refused(server.chat, max_completion_tokens=4).param == "max_completion_tokens"
        )  # and max_tokens
    assert refused(server.chat, max_tokens=10**7).code == "context_length_exceeded"
    assert refused(server.text, prompt="").param == "prompt"
    assert refused(server.text, stop=[""]).param == "stop"
    if server.token:
        with pytest.raises(openai.AuthenticationError) as stranger:
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0).models.list()
        assert stranger.value.code == "unauthorized"
