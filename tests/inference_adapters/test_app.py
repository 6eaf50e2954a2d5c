"""The app around an engine, without a server."""

import asyncio
import json

import pytest
from starlette.responses import PlainTextResponse

from inference_adapters.app import create_app
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates


async def status_of(app, method: str, path: str) -> tuple[int, bytes]:
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope | {"root_path": "", "http_version": "1.1", "scheme": "http"}, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [("GET", "/init_process_group", 405), ("PUT", "/health", 405), ("GET", "/elsewhere", 200)],
)
def test_an_app_that_an_adapter_mounts_takes_no_route_of_the_contract(method, path, expected):
    def mount(app, updates):
        app.mount("/", PlainTextResponse("the engine's own"))

    app = create_app(WeightUpdates(ScriptedEngine()), add_generation=mount)
    status, body = asyncio.run(status_of(app, method, path))
    assert status == expected
    assert expected == 200 or json.loads(body)["error"]["code"] == "method_not_allowed"
