"""Generation over HTTP: answers and their log-probabilities."""

import pytest
import torch

from inference_adapters.scripted import CONTEXT, EOS
from tests.inference_adapters.reference import distribution, state_after, step
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, weights

MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT = {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, "logprobs": True}


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
