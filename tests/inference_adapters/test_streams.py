"""Streams over HTTP, and what ends when a client goes."""

import asyncio
import json
import time
from contextlib import ExitStack

import openai
import pytest

from inference_adapters.streaming import EventStream
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import joined_trainer, trainer_of, weights

MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT = {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, "logprobs": True}


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
