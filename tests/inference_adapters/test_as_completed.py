"""Answers of embedded servers whose choices come as they complete."""

import json

import aiohttp
import pytest

from tests.inference_adapters.servers import Server, contract

TEXT = {"model": "scripted", "prompt": "1 + 1 =", "max_tokens": 6, "logprobs": True, "n": 3, "seed": 3}
CHAT = {name: value for name, value in TEXT.items() if name != "prompt"}
CHAT["messages"] = [{"role": "user", "content": "1"}]
ROUTES = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)]


async def posted(server: Server, path: str, body: dict) -> tuple[int, str, str]:
    async with aiohttp.ClientSession(server.url) as http, http.post(path, json=body) as response:
        return response.status, response.content_type, await response.text()


@pytest.mark.asyncio
@pytest.mark.parametrize("arrays", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_the_lines_are_the_choices_of_the_whole_answer(server: Server, path, body, arrays):
    assert "as_completed" in contract(server.url)["capabilities"]
    body = body | {"arrays": arrays}
    whole = json.loads((await posted(server, path, body))[2])
    status, content_type, text = await posted(server, path, body | {"as_completed": True})
    assert (status, content_type) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in text.splitlines()]
    assert len({line.pop("id") for line in lines}) == 1
    choices = [choice for line in lines for choice in line.pop("choices")]
    assert sorted(choices, key=lambda choice: choice["index"]) == whole.pop("choices")
    for name in ("id", "usage"):
        del whole[name]
    for line in lines:
        assert line | {"created": 0} == whole | {"created": 0}


@pytest.mark.asyncio
async def test_a_choice_is_sent_while_another_goes_on(server: Server):
    """Of two prompts one is stopped by its first token, and the other never."""
    body = TEXT | {"prompt": [[1], [2]], "n": 1, "temperature": 0, "max_tokens": 400}
    first = json.loads((await posted(server, "/v1/completions", body | {"max_tokens": 1}))[2])
    ones = [choice["token_ids"][0] for choice in first["choices"]]
    assert ones[0] != ones[1]
    body |= {"stop_token_ids": [ones[0]], "as_completed": True}
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post("/v1/completions", json=body) as response,
    ):
        line = json.loads(await response.content.readline())
        assert [choice["index"] for choice in line["choices"]] == [0]
        assert not response.content.at_eof()


@pytest.mark.asyncio
async def test_it_is_refused_with_a_stream(server: Server):
    body = TEXT | {"as_completed": True, "stream": True}
    status, _, text = await posted(server, "/v1/completions", body)
    error = json.loads(text)["error"]
    assert (status, error["code"], error["param"]) == (400, "invalid_request", "as_completed")


@pytest.mark.asyncio
async def test_false_asks_for_nothing(server: Server):
    _, _, text = await posted(server, "/v1/completions", TEXT | {"as_completed": False})
    assert len(json.loads(text)["choices"]) == 3
