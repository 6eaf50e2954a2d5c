"""Answers of embedded servers in arrays: the same numbers as in lists, on each route and in streams."""

import base64
import json

import aiohttp
import numpy as np
import pytest

from inference_adapters.logprob_forms import TokenTexts
from tests.inference_adapters.servers import Server, contract

TEXT = {"model": "scripted", "prompt": "1 + 1 =", "max_tokens": 6, "logprobs": True, "seed": 3}
CHAT = {name: value for name, value in TEXT.items() if name != "prompt"}
CHAT["messages"] = [{"role": "user", "content": "1"}]
ROUTES = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]


def numbers(dtype: str, text: str) -> list:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).tolist()


async def posted(server: Server, path: str, body: dict) -> tuple[int, dict]:
    async with aiohttp.ClientSession(server.url) as http, http.post(path, json=body) as response:
        return response.status, await response.json()


def without(names: tuple[str, ...], body: dict) -> dict:
    return {name: value for name, value in body.items() if name not in names}


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_arrays_say_what_lists_say_and_stand_in_their_place(server: Server, path, body):
    assert "arrays" in contract(server.url)["capabilities"]
    _, lists = await posted(server, path, body | {"n": 2})
    status, arrays = await posted(server, path, body | {"n": 2, "arrays": True})
    assert status == 200
    assert numbers("<i4", arrays.pop("prompt_token_ids_base64")) == lists.pop("prompt_token_ids")
    for one, other in zip(arrays.pop("choices"), lists.pop("choices"), strict=True):
        assert numbers("<i4", one.pop("token_ids_base64")) == other.pop("token_ids")
        logprobs = [token["logprob"] for token in other.pop("logprobs")["content"]]
        assert numbers("<f4", one.pop("logprobs_base64")) == logprobs
        assert one == other
    assert arrays.keys() == lists.keys()


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_the_arrays_of_a_stream_are_those_of_its_chunks(server: Server, path, body):
    _, whole = await posted(server, path, body | {"arrays": True})
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post(path, json=body | {"arrays": True, "stream": True}) as response,
    ):
        lines = (await response.text()).split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    prompts = [chunk["prompt_token_ids_base64"] for chunk in chunks if "prompt_token_ids_base64" in chunk]
    assert prompts == [whole["prompt_token_ids_base64"]]
    assert len(chunks) > 1
    for name, dtype in (("token_ids_base64", "<i4"), ("logprobs_base64", "<f4")):
        parts = [number for chunk in chunks for number in numbers(dtype, chunk["choices"][0][name])]
        assert parts == numbers(dtype, whole["choices"][0][name])


@pytest.mark.asyncio
async def test_each_of_several_prompts_is_an_array(server: Server):
    body = TEXT | {"prompt": [[1, 2], [3]], "arrays": True}
    _, answer = await posted(server, "/v1/completions", body)
    prompts = [numbers("<i4", choice["prompt_token_ids_base64"]) for choice in answer["choices"]]
    assert prompts == [[1, 2], [3]] and "prompt_token_ids_base64" not in answer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", TEXT | {"logprobs": False}),
        ("/v1/completions", TEXT | {"logprobs": 1}),
        ("/v1/chat/completions", without(("logprobs",), CHAT)),
        ("/v1/chat/completions", CHAT | {"top_logprobs": 2}),
    ],
)
async def test_arrays_need_log_probabilities_and_hold_no_alternatives(server: Server, path, body):
    status, answer = await posted(server, path, body | {"arrays": True})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_request", "arrays")


@pytest.mark.asyncio
async def test_false_asks_for_nothing(server: Server):
    _, answer = await posted(server, "/v1/completions", TEXT | {"arrays": False})
    assert answer["choices"][0]["token_ids"]


def test_a_token_is_decoded_once():
    asked = []

    def decode(token_ids) -> str:
        asked.append(list(token_ids))
        return "é" if token_ids == [7] else "\ufffd"

    texts = TokenTexts(decode)
    found = texts.content([7, 8, 7], [-0.1, -0.2, -0.3], [[(8, -0.4)], [], [(7, -0.3)]])
    assert asked == [[7], [8]]
    seven = {"token": "é", "bytes": [0xC3, 0xA9]}
    eight = {"token": "\ufffd", "bytes": None}
    assert found["content"] == [
        seven | {"logprob": -0.1, "top_logprobs": [eight | {"logprob": -0.4}]},
        eight | {"logprob": -0.2, "top_logprobs": []},
        seven | {"logprob": -0.3, "top_logprobs": [seven | {"logprob": -0.3}]},
    ]
