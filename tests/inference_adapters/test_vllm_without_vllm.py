"""What of the vLLM adapter needs no vLLM: its refusals to start, and what it adds to answers."""

import re

import pytest

from inference_adapters.vllm.__main__ import main
from inference_adapters.vllm.responses import (
    event,
    event_body,
    with_ends,
    with_likeliest,
    with_possible,
    with_text_fields,
    with_usage,
)

SPANS = {0: [{"version": 3, "start": 0, "end": 2}], 1: [{"version": 4, "start": 0, "end": 1}]}


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        (None, "vLLM is not installed here (`make vllm-env`, or pip install .[vllm])"),
        ("0.31.2", "vLLM 0.31.2 is installed; this adapter knows 0.32"),
        ("0.320.0", "vLLM 0.320.0 is installed; this adapter knows 0.32"),
    ],
)
def test_an_engine_that_is_not_the_one_it_knows(tmp_path, monkeypatch, installed, says):
    if installed:
        (tmp_path / f"vllm-{installed}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {installed}\n"
        (tmp_path / f"vllm-{installed}.dist-info" / "METADATA").write_text(metadata)
        monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", ["vllm", "--model", "m"])
    with pytest.raises(SystemExit, match=f"^cannot serve: {re.escape(says)}[^\n]*$"):
        main()


def test_the_likeliest_tokens_are_in_order_and_possible():
    """vLLM puts the sampled token first, whatever its rank."""

    def tops(*logprobs: float) -> list[dict]:
        return [{"token": str(logprob), "logprob": logprob} for logprob in logprobs]

    content = [{"top_logprobs": tops(-3, -1, -2)}, {"top_logprobs": tops(-1, -2, -9999)}]
    answer = {"choices": [{"logprobs": {"content": content}}, {"logprobs": None}, {}]}
    found = with_likeliest(answer, 2)["choices"][0]["logprobs"]["content"]
    assert [token["top_logprobs"] for token in found] == [tops(-1, -2), tops(-1, -2)]
    classic = {"choices": [{"logprobs": {"top_logprobs": [None, {"a": -1.0, "b": -9999.0}]}}]}
    assert with_possible(classic)["choices"][0]["logprobs"]["top_logprobs"] == [None, {"a": -1.0}]


def test_a_chunk_has_a_usage_only_if_it_was_asked_for():
    assert with_usage({"choices": []}, False) == {"choices": []}
    assert with_usage({"choices": []}, True) == {"choices": [], "usage": None}
    assert with_usage({"usage": 5}, True) == {"usage": 5}


def test_spans_stand_on_choices_that_have_ended():
    answer = {"choices": [{"index": 1, "finish_reason": "stop"}, {"index": 0, "finish_reason": None}]}
    assert with_ends(answer, SPANS, {0})["choices"] == [
        {"index": 1, "finish_reason": "stop", "weight_versions": SPANS[1]},
        {"index": 0, "finish_reason": None},
    ]


def test_a_call_that_was_cut_short_is_no_end():
    answer = {"choices": [{"index": i, "finish_reason": "tool_calls"} for i in range(2)]}
    reasons = [choice["finish_reason"] for choice in with_ends(answer, SPANS, {1})["choices"]]
    assert reasons == ["tool_calls", "length"]


def test_a_completion_that_was_stopped_before_its_call_does_not_call():
    call = {"message": {"tool_calls": [{"function": {}}]}, "index": 0, "finish_reason": "tool_calls"}
    none = {"message": {"tool_calls": []}, "index": 1, "finish_reason": "tool_calls"}
    answer = with_ends({"choices": [call, none]}, SPANS, set())
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop"]


def completion(*prompts: list[int]) -> dict:
    native = {"tokens": ["a", "é"], "token_logprobs": [-0.5, -1.5]}
    return {"choices": [{"prompt_token_ids": ids, "logprobs": native} for ids in prompts]}


def test_text_completions_get_the_form_of_chat_completions_where_it_is_asked_for():
    answer = with_text_fields(completion([5, 6]), content=True)
    assert answer["prompt_token_ids"] == [5, 6]
    assert answer["choices"][0]["logprobs"]["content"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []},
        {"token": "é", "logprob": -1.5, "bytes": [195, 169], "top_logprobs": []},
    ]
    assert "tokens" in with_text_fields(completion([5]), content=False)["choices"][0]["logprobs"]


def test_several_prompts_have_no_common_ids():
    assert "prompt_token_ids" not in with_text_fields(completion([5], [6]), content=True)
    assert with_text_fields(completion([5], [5]), content=True)["prompt_token_ids"] == [5]


def test_events_are_read_as_they_are_written():
    assert event_body(event({"choices": []})) == {"choices": []}
    assert event_body("data: [DONE]\n\n") is None
