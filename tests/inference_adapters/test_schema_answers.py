"""What the scripted server answers is what the OpenAPI file says."""

import json

import aiohttp
import jsonschema
import pytest

from contracts.schema import FILE
from tests.inference_adapters.servers import Server

OPENAPI = json.loads(FILE.read_text())
TEXT = {"model": "scripted", "prompt": "1 + 1 =", "max_tokens": 3}
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "1"}], "max_tokens": 3}
JOIN = {"run": "r", "takeover": True, "epoch": 1, "group_name": "g", "backend": "gloo", "timeout_s": 0.2}
JOIN |= {"master_address": "127.0.0.1", "master_port": 9, "rank_offset": 1, "world_size": 2}
UPDATE = {"run": "none", "epoch": 1, "version": 1, "bucket_bytes": 8, "timeout_s": 700}
UPDATE["parameters"] = [{"name": "w", "dtype": "float32", "shape": [2]}]
REQUESTS = [
    ("GET", f"/health?challenge={'0' * 32}", None, {200}),
    ("GET", "/contract", None, {200}),
    ("GET", "/v1/models", None, {200}),
    ("POST", "/v1/completions", TEXT | {"logprobs": True, "n": 2}, {200}),
    ("POST", "/v1/completions", TEXT, {200}),
    ("POST", "/v1/completions", TEXT | {"logprobs": True, "arrays": True}, {200}),
    ("POST", "/v1/completions", TEXT | {"temperature": -1}, {400, 422}),
    ("POST", "/v1/chat/completions", CHAT | {"logprobs": True}, {200}),
    ("POST", "/v1/chat/completions", CHAT | {"model": "another"}, {404}),
    ("POST", "/score", {"sequences": [[1, 2, 3]]}, {200}),
    ("POST", "/init_process_group", JOIN, {504}),
    ("POST", "/init_process_group", JOIN | {"more": 1}, {422}),
    ("POST", "/request_weight_update", UPDATE, {409}),
    ("POST", "/abort_weight_update", {"run": "none", "epoch": 1, "version": 1}, {404, 409}),
    ("GET", "/weight_update/9007199254740991", None, {404}),
]


def check(reference: str, body: object) -> None:
    jsonschema.Draft202012Validator(OPENAPI | {"$ref": reference}).validate(body)


@pytest.mark.asyncio
async def test_every_answer_and_error_is_as_the_file_says(server: Server):
    async with aiohttp.ClientSession(server.url) as http:
        for method, path, body, statuses in REQUESTS:
            async with http.request(method, path, json=body) as response:
                told = await response.json()
            assert response.status in statuses, (path, told)
            route = OPENAPI["paths"][
                "/weight_update/{version}" if "/weight_update/" in path else path.split("?")[0]
            ]
            content = route[method.lower()]["responses"][str(response.status)]["content"]
            check(content["application/json"]["schema"]["$ref"], told)


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)])
async def test_every_event_of_a_stream_is_as_the_file_says(server: Server, path: str, body: dict):
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post(path, json=body | {"stream": True, "logprobs": True}) as response,
    ):
        text = await response.text()
    *events, end = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert events and end == "[DONE]"
    content = OPENAPI["paths"][path]["post"]["responses"]["200"]["content"]
    for event in events:
        check(content["text/event-stream"]["x-event"]["$ref"], json.loads(event))
