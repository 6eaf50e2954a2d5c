"""What the scripted server answers is what the OpenAPI file says."""

import json
import re

import aiohttp
import jsonschema
import pytest

from contracts.inference import ChatCompletionRequest, CompletionRequest, InitProcessGroupRequest
from contracts.schema import FILE
from contracts.schema.routes import ROUTES
from tests.contracts.valid_requests import VALID
from tests.inference_adapters.servers import Server

OPENAPI = json.loads(FILE.read_text())
TEXT = VALID[CompletionRequest]
CHAT = VALID[ChatCompletionRequest]
JOIN = VALID[InitProcessGroupRequest]
REFUSED = {  # statuses of a server that forms no group; 409 and 200 if an earlier test has had it join one
    "/init_process_group": {409, 504},
    "/leave_process_group": {200, 409},
    "/init_weight_channel": {409, 422},
    "/request_weight_update": {409},
    "/weight_update/{version}": {200, 404},
    "/abort_weight_update": {404, 409},
    "/sleep": {409},
    "/wake": {409},
    "/v1/models/{model}": {404},
}
SAMPLES = [
    (*route.sample, VALID.get(route.request), REFUSED.get(route.path, {route.status})) for route in ROUTES
]
OTHERS = [
    ("GET", f"/health?challenge={'0' * 32}", None, {200}),
    ("POST", "/v1/completions", TEXT | {"logprobs": True, "n": 2}, {200}),
    ("POST", "/v1/completions", TEXT | {"logprobs": True, "arrays": True}, {200}),
    ("POST", "/v1/completions", TEXT | {"temperature": -1}, {400}),
    ("POST", "/v1/chat/completions", CHAT | {"logprobs": True}, {200}),
    ("POST", "/v1/chat/completions", CHAT | {"model": "another"}, {404}),
    ("POST", "/init_process_group", JOIN | {"more": 1}, {422}),
    ("GET", "/weight_update/9007199254740991", None, {404}),
]


def operation(method: str, path: str) -> dict:
    """Returns what the file says of the route that this request is for."""
    paths = [route.path for route in ROUTES if route.sample[0] == method]
    found = next(p for p in paths if re.fullmatch(re.sub(r"{\w+}", ".+", p), path.partition("?")[0]))
    return OPENAPI["paths"][found][method.lower()]


def check(reference: str, body: object) -> None:
    jsonschema.Draft202012Validator(OPENAPI | {"$ref": reference}).validate(body)


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "path", "body", "statuses"), [*SAMPLES, *OTHERS])
async def test_an_answer_is_as_the_file_says(server: Server, method, path, body, statuses):
    async with aiohttp.ClientSession(server.url) as http, http.request(method, path, json=body) as response:
        told = await response.text()
    assert response.status in statuses, told
    content = operation(method, path)["responses"][str(response.status)].get("content", {})
    assert method == "HEAD" or response.content_type in content
    if told and "application/json" in content:
        check(content["application/json"]["schema"]["$ref"], json.loads(told))


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
