"""Generation over HTTP: answers, log-probabilities, streams, refusals, cancellation."""

import asyncio
import json
import time
from contextlib import ExitStack

import openai
import pytest
import torch

from inference_adapters.scripted import CONTEXT, EOS
from inference_adapters.streaming import EventStream
from tests.inference_adapters.reference import distribution, state_after, step
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, trainer_of, weights

MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT = {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, "logprobs": True}


# --- answers -----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_chat_answers_carry_tokens_logprobs_and_spans(server: Server):
    async with joined_trainer(server.url) as trainer:
        status, answer = await trainer.post("/v1/chat/completions", CHAT | {"n": 3, "temperature": 1.3})
        assert status == 200 and answer["object"] == "chat.completion" and answer["model"] == "scripted"
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        for choice in answer["choices"]:
            content = choice["logprobs"]["content"]
            assert len(choice["token_ids"]) == len(content)
            spelled = "".join(item["token"] for item in content)
            assert choice["message"] == {"role": "assistant", "content": spelled}
            assert bytes(b for item in content for b in item["bytes"]).decode() == spelled
            assert choice["weight_versions"] == [{"version": 1, "start": 0, "end": len(content)}]
        sampled = sum(len(choice["token_ids"]) for choice in answer["choices"])
        prompt = len(answer["prompt_token_ids"])
        assert answer["usage"] == {
            "prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled,
        }  # fmt: skip


@pytest.mark.asyncio
async def test_token_ids_in_equal_the_chat_path_and_its_alias(server: Server):
    async with joined_trainer(server.url) as trainer:
        greedy = CHAT | {"temperature": 0}
        _, chat = await trainer.post("/v1/chat/completions", greedy)
        _, alias = await trainer.post("/v1/chat/completion", greedy)
        _, newer = await trainer.post(
            "/v1/chat/completions",
            {k: v for k, v in greedy.items() if k != "max_tokens"} | {"max_completion_tokens": 10},
        )
        tokens = await trainer.complete(chat["prompt_token_ids"], max_tokens=10, temperature=0)
        text = await trainer.complete("user: hello there\nassistant: ", max_tokens=10, temperature=0)
        for answer in (alias, newer, tokens, text):
            assert answer["prompt_token_ids"] == chat["prompt_token_ids"]
            assert answer["choices"][0]["token_ids"] == chat["choices"][0]["token_ids"]
            assert answer["choices"][0]["logprobs"] == chat["choices"][0]["logprobs"]
        assert tokens["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


@pytest.mark.asyncio
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.6])
@pytest.mark.parametrize("top_k", [None, 5])
async def test_logprobs_are_of_the_distribution_sampled_from(server: Server, temperature, top_k):
    async with joined_trainer(server.url) as trainer:
        answer = await trainer.complete(max_tokens=30, temperature=temperature, top_k=top_k)
        choice = answer["choices"][0]
        state = state_after(weights(1), answer["prompt_token_ids"])
        for token_id, logprob in zip(choice["token_ids"], logprobs(choice), strict=True):
            # Greedy says the unscaled softmax, whatever the truncation.
            expected = distribution(weights(1), state, temperature or 1.0, top_k if temperature else None)
            assert logprob == pytest.approx(expected[token_id].item(), abs=1e-5)
            if temperature == 0:
                assert token_id == expected.argmax()
            state = step(weights(1), state, token_id)


@pytest.mark.asyncio
async def test_top_p_keeps_the_fewest_tokens_that_hold_it(server: Server):
    async with joined_trainer(server.url) as trainer:
        choice = (answer := await trainer.complete(max_tokens=40, top_p=0.6))["choices"][0]
        state, cut = state_after(weights(1), answer["prompt_token_ids"]), 0
        for token_id, logprob in zip(choice["token_ids"], logprobs(choice), strict=True):
            mass = distribution(weights(1), state).exp().sort(descending=True).values.cumsum(0)
            keep = int((mass < 0.6).sum()) + 1
            cut += keep < len(mass)
            expected = distribution(weights(1), state, keep=keep)[token_id].item()
            assert logprob == pytest.approx(expected, abs=1e-5)
            state = step(weights(1), state, token_id)
        assert cut


@pytest.mark.asyncio
async def test_score_says_what_generation_said(server: Server):
    async with joined_trainer(server.url) as trainer:
        answer = await trainer.complete(max_tokens=20, temperature=0.8)
        prompt, choice = answer["prompt_token_ids"], answer["choices"][0]
        body = {"sequences": [prompt + choice["token_ids"], [5]], "temperature": 0.8}
        status, score = await trainer.post("/score", body)
        assert status == 200 and score["version"] == 1 and score["logprobs"][1] == []
        assert len(score["logprobs"][0]) == len(prompt) + len(choice["token_ids"]) - 1
        assert score["logprobs"][0][len(prompt) - 1 :] == pytest.approx(logprobs(choice), abs=1e-5)


@pytest.mark.asyncio
async def test_seeds(server: Server):
    async with joined_trainer(server.url) as trainer:
        first = await trainer.complete(max_tokens=30, seed=7, n=2)
        again = await trainer.complete(max_tokens=30, seed=7, n=2)
        assert [c["token_ids"] for c in first["choices"]] == [c["token_ids"] for c in again["choices"]]
        assert first["choices"][0]["token_ids"] != first["choices"][1]["token_ids"]
        other = await trainer.complete(max_tokens=30, seed=8)
        assert other["choices"][0]["token_ids"] == first["choices"][1]["token_ids"]


@pytest.mark.asyncio
async def test_stop_and_length(server: Server):
    async with joined_trainer(server.url) as trainer:
        greedy = (await trainer.complete(max_tokens=10, temperature=0))["choices"][0]
        assert greedy["finish_reason"] == "length" and len(greedy["token_ids"]) == 10
        stop = greedy["token_ids"][-1]
        stopped = await trainer.complete(max_tokens=10, temperature=0, stop_token_ids=[stop])
        first = greedy["token_ids"].index(stop)
        assert stopped["choices"][0]["token_ids"] == greedy["token_ids"][: first + 1]
        assert stopped["choices"][0]["finish_reason"] == "stop"

        ending = weights(1)
        ending["lm_head.bias"] = torch.zeros_like(ending["lm_head.bias"]).index_fill(
            0, torch.tensor([EOS]), 50.0
        )
        await trainer.publish(2, ending)
        choice = (await trainer.complete(max_tokens=10))["choices"][0]
        assert choice["token_ids"] == [EOS] and choice["finish_reason"] == "stop" and choice["text"] == ""
        assert len(logprobs(choice)) == 1 and choice["weight_versions"] == [
            {"version": 2, "start": 0, "end": 1}
        ]


@pytest.mark.asyncio
async def test_no_max_tokens_means_up_to_the_context(server: Server):
    async with joined_trainer(server.url) as trainer:
        prompt = [5] * (CONTEXT - 6)
        choice = (await trainer.complete(prompt, max_tokens=None, temperature=0))["choices"][0]
        assert len(choice["token_ids"]) == 6 and choice["finish_reason"] == "length"


# --- streams -----------------------------------------------------------------------------------


async def streamed(trainer, path: str, body: dict) -> list[dict]:
    async with trainer.http.post(trainer.url + path, json=body | {"stream": True}) as answer:
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in (await answer.text()).splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_says_what_the_whole_answer_says(server: Server, path):
    async with joined_trainer(server.url) as trainer:
        chat = path == "/v1/chat/completions"
        body = CHAT | {"n": 2, "seed": 3}
        if not chat:
            body = {k: v for k, v in body.items() if k != "messages"} | {"prompt": "hello"}
        _, whole = await trainer.post(path, body)
        chunks = await streamed(trainer, path, body)
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
        for index, choice in enumerate(whole["choices"]):
            parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            text = [part["delta"]["content"] if chat else part["text"] for part in parts]
            assert "".join(text) == (choice["message"]["content"] if chat else choice["text"])
            assert [t for part in parts for t in part["token_ids"]] == choice["token_ids"]
            content = [item for part in parts for item in part["logprobs"]["content"]]
            assert content == choice["logprobs"]["content"]
            assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
            assert parts[-1]["finish_reason"] == choice["finish_reason"]
            assert parts[-1]["weight_versions"] == choice["weight_versions"]
            assert not any("weight_versions" in part for part in parts[:-1])
            if chat:
                assert [part["delta"].get("role") for part in parts] == ["assistant"] + [None] * (
                    len(parts) - 1
                )


def test_the_openai_client_works(server: Server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["scripted"]
    whole = client.chat.completions.create(
        model="scripted", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True
    )
    choice = whole.choices[0]
    assert len(choice.logprobs.content) == len(choice.token_ids) == whole.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=MESSAGES, max_tokens=8, temperature=0, logprobs=True, stream=True
        )
    )
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason
    text = client.completions.create(
        model="scripted", prompt=whole.prompt_token_ids, max_tokens=8, temperature=0
    )
    assert text.choices[0].text == choice.message.content
    with pytest.raises(openai.BadRequestError, match="frequency_penalty"):
        client.chat.completions.create(model="scripted", messages=MESSAGES, frequency_penalty=1.0)


# --- refusals ----------------------------------------------------------------------------------

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


# --- cancellation ------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_connection_frees_its_slots_within_a_second(server: Server, stream):
    async with trainer_of(server.url) as trainer:
        body = {
            "model": "scripted",
            "prompt": "hello",
            "max_tokens": 4000,
            "temperature": 0,
            "n": 2,
            "stream": stream,
        }
        request = asyncio.create_task(trainer.http.post(f"{server.url}/v1/completions", json=body))
        await trainer.wait_running(2)
        if stream:
            (await request).close()
        else:
            request.cancel()
        started = time.monotonic()
        await trainer.wait_running(0)
        assert time.monotonic() - started < 1


@pytest.mark.asyncio
async def test_a_closed_connection_cancels_a_request_that_an_update_holds(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2), timeout_s=2)
        await trainer.send_first_bucket(weights(2))
        request = asyncio.create_task(trainer.complete(max_tokens=100))
        await trainer.wait_running(1)
        request.cancel()
        await trainer.wait_running(0, within_s=1)


@pytest.mark.asyncio
async def test_a_stream_whose_client_goes_while_a_chunk_is_sent_is_closed_at_once():
    sending = asyncio.Event()

    async def chunks():
        yield "data: 1"

    async def receive() -> dict:
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        if message["type"] == "http.response.body":
            sending.set()
            await asyncio.Event().wait()  # the client reads no more

    events = chunks()
    await asyncio.wait_for(EventStream(events, ExitStack())({"type": "http"}, receive, send), 1)
    assert events.ag_frame is None  # closed, though this test still holds it
