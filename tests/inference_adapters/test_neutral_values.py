"""What is left out of a request because it asks for nothing."""

import pytest

from inference_adapters.neutral_values import LABELS, NEUTRAL, without_neutral


@pytest.mark.parametrize("name", NEUTRAL)
def test_only_neutral_values_are_left_out(name):
    for value in (*NEUTRAL[name], None):
        assert without_neutral({"model": "m", name: value}) == {"model": "m"}
    for value in (7, "else", [5], {"a": 1}, 0.5):
        assert without_neutral({name: value}) == {name: value}


@pytest.mark.parametrize("body", [
     {"presence_penalty": False}, {"store": 0}, {"echo": 0.0}, {"min_p": "0"}, {"best_of": 2},
     {"best_of": True}, {"best_of": 1, "n": 2}, {"tools": [{}], "tool_choice": "none"},
     {"tool_choice": "required"}, {"tool_choice": {"type": "function"}}, {"user": 5}, {"no_such_field": 0},
     {"logprobs": False},
], ids=str)  # fmt: skip
def test_what_asks_for_something_stays(body):
    assert without_neutral(body) == body


def test_what_depends_on_another_field():
    assert without_neutral({"best_of": 3, "n": 3}) == {"n": 3}
    assert without_neutral({"best_of": 1}) == {}
    assert without_neutral({"tools": [], "tool_choice": "auto"}) == {}
    assert without_neutral(dict.fromkeys(LABELS, "x")) == {}
    assert without_neutral({"frequency_penalty": -0.0, "repetition_penalty": 1.0, "no_such": None}) == {}
