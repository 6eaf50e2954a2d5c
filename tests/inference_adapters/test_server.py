"""The process: token, port, end."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import aiohttp
import pytest

from tests.inference_adapters.servers import Server, serving, wait_ready
from tests.inference_adapters.trainer_peer import trainer_of

ROUTES = [
    ("GET", "/contract"),
    ("POST", "/init_process_group"),
    ("POST", "/request_weight_update"),
    ("GET", "/weight_update/1"),
    ("POST", "/abort_weight_update"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chat/completion"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("POST", "/score"),
    ("GET", "/openapi.json"),
    ("GET", "/nowhere"),
]


@pytest.mark.asyncio
async def test_a_wrong_token_gets_401_and_the_server_ends_promptly_with_open_connections():
    token = {"PIPELINERL_TOKEN": "s3cret"}
    with serving("inference_adapters.scripted", "--token-delay-s", "0.1", environment=token) as server:
        wait_ready(server.url)
        async with aiohttp.ClientSession() as http:
            for method, path in ROUTES:
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
                    async with http.request(method, server.url + path, headers=headers, json={}) as answer:
                        body = await answer.json()
                        assert (answer.status, body["error"]["code"]) == (401, "unauthorized"), path
            bearer = {"Authorization": "Bearer s3cret"}
            async with http.get(f"{server.url}/contract", headers=bearer) as answer:
                assert answer.status == 200

            body = {"model": "scripted", "prompt": "hello", "max_tokens": 1000, "stream": True}
            stream = await http.post(f"{server.url}/v1/completions", json=body, headers=bearer)
            await stream.content.readline()
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.process.wait, 10)
            assert time.monotonic() - started < 3
            *_, last, done = [line for line in (await stream.read()).splitlines() if line]
            assert done == b"data: [DONE]" and b'"finish_reason": "abort"' in last


def test_a_port_in_use_is_one_line(server: Server):
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "inference_adapters.scripted", "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr == f"cannot listen at 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.asyncio
async def test_unknown_routes_and_broken_bodies_are_errors_of_the_contract(server: Server):
    async with trainer_of(server.url) as trainer:
        assert (await trainer.get("/nowhere"))[1]["error"]["code"] == "not_found"
        async with trainer.http.post(
            f"{server.url}/score", data=b"{", headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 400 and json.loads(await answer.read())["error"]["code"] == "bad_request"
