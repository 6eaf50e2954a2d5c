"""Requests to generate that are refused, and values that ask for nothing."""

import pytest

from inference_adapters.scripted import CONTEXT
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import joined_trainer

MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT = {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, "logprobs": True}


REFUSED = {
    "logit_bias": ({"logit_bias": {"5": 1}}, 400, "unsupported_parameter"),
    "top_logprobs": ({"top_logprobs": 3, "logprobs": False}, 400, "invalid_request"),
    "top_logprobs ": ({"top_logprobs": 21}, 400, "invalid_request"),
    "stop": ({"stop": ["x", ""]}, 400, "invalid_request"),
    "stream_options": ({"stream_options": {"include_usage": True}}, 400, "invalid_request"),
    "tools": ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter"),
    "temperature": ({"temperature": -1}, 400, "invalid_request"),
    "max_tokens": ({"max_tokens": 0}, 400, "invalid_request"),
    "top_p": ({"top_p": 0}, 400, "invalid_request"),
    "top_k": ({"top_k": -2}, 400, "invalid_request"),
    "n": ({"n": "many"}, 400, "invalid_request"),
    "messages": ({"messages": []}, 400, "invalid_request"),
    "messages ": ({"messages": [{"content": "no role"}]}, 400, "invalid_request"),
    "max_completion_tokens": ({"max_completion_tokens": 4}, 400, "invalid_request"),
    "model": ({"model": "gpt-7"}, 404, "not_found"),
    "context": ({"max_tokens": CONTEXT}, 400, "context_length_exceeded"),
}


@pytest.mark.asyncio
async def test_what_is_not_honoured_is_refused_and_changes_nothing(server: Server):
    async with joined_trainer(server.url) as trainer:
        before = await trainer.greedy()
        for named, (changes, status, code) in REFUSED.items():
            answer = await trainer.post("/v1/chat/completions", CHAT | changes)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code), (named, answer)
            assert named.strip() in answer[1]["error"]["message"], (named, answer)
        for path, body, code in [
            ("/v1/completions", {"model": "scripted", "prompt": []}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": [97]}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": [97], "stream": True}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": "a", "logprobs": 21}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": [[]]}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": ["a", ""]}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": ["a", [1]]}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": ["a"] * 1025}, "invalid_request"),
            ("/v1/completions", {"model": "scripted", "prompt": ["a"] * 65, "n": 128}, "invalid_request"),
            ("/v1/completions", {"prompt": "a"}, "invalid_request"),
            ("/score", {"sequences": [[]]}, "invalid_request"),
            ("/score", {"sequences": [[97]]}, "invalid_request"),
            ("/score", {"sequences": [[1]], "temperature": 0}, "invalid_request"),
            ("/score", {"sequences": [[1] * (CONTEXT + 1)]}, "context_length_exceeded"),
        ]:
            status, answer = await trainer.post(path, body)
            assert answer["error"]["code"] == code, (body, answer)
            assert status == (422 if path == "/score" else 400), (body, answer)
        assert await trainer.greedy() == before


@pytest.mark.asyncio
async def test_neutral_values_ask_for_nothing(server: Server):
    async with joined_trainer(server.url) as trainer:
        plain = await trainer.complete(temperature=0)
        for neutral in (
            {"top_p": 1},
            {"top_k": -1},
            {"top_k": 0},
            {"stop": []},
            {"seed": None},
        ):
            assert (await trainer.complete(temperature=0, **neutral))["choices"] == plain["choices"]
