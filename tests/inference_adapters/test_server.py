"""The process: its end, and a port that is in use."""

import asyncio
import signal

import aiohttp
import pytest

from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments, run
from tests.inference_adapters.held_engine import HELD
from tests.inference_adapters.servers import Server, serving, wait_ready


@pytest.mark.asyncio
async def test_a_server_ends_its_streams_when_it_is_told_to_end():
    with serving("tests.inference_adapters.held_engine") as server:
        wait_ready(server.url)
        async with aiohttp.ClientSession() as http:
            body = {"model": "scripted", "prompt": HELD, "max_tokens": 1000, "stream": True}
            stream = await http.post(f"{server.url}/v1/completions", json=body)
            await stream.content.readline()
            server.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(server.process.wait)
            *_, last, done = [line for line in (await stream.read()).splitlines() if line]
            assert done == b"data: [DONE]" and b'"finish_reason": "abort"' in last


def test_a_port_in_use_is_one_line(server: Server):
    port = server.url.rsplit(":", 1)[1]
    with pytest.raises(SystemExit, match=f"^cannot listen at 127.0.0.1:{port}: Address already in use$"):
        run(ScriptedEngine(), arguments("a server").parse_args(["--port", port]))
