"""What the endpoint of agents costs the actor: CPU time and delay of a request, and memory of its sessions.

    python -m benchmarks.agents [--sessions 1000] [--turns 10] [--at-once 64]

It writes a table. The actor's part runs in this process, with its client and tokenizer; a scripted server and
the agents run in others. The delay is what a request waits beside the server's answer.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from typing import Any

import aiohttp
import numpy as np
import psutil

from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.command_line import command_parser
from extensions.agents.endpoint.server import Endpoint
from extensions.agents.endpoint.session import Session
from extensions.agents.options import EndpointOptions
from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.conversations.template import TemplateConversations

TOKENS = 16  # of an answer
MESSAGE = "what is the next one? " * 4
SERVER = (sys.executable, "-m", "inference_adapters.scripted", "--port", "0", "--token-delay-s", "0.05")


OF_SERVER: dict[int, float] = {}  # seconds, negative, by the request's task


class TimedClient(LLMClient):
    """A client that subtracts the server's part of a request."""

    async def _request(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        answer = await super()._request(*arguments)
        OF_SERVER[id(asyncio.current_task())] -= time.perf_counter() - began
        return answer


class Timed:
    """Times requests: from their arrival to their last byte, without the server's part."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def session(self, client: LLMClient) -> Session:
        session = Session(client, renders=False, tools=False)
        reply = session.reply
        deliver = session.deliver

        async def timed_reply(request: Any) -> Any:
            OF_SERVER[id(asyncio.current_task())] = -time.perf_counter()
            return await reply(request)

        async def timed_deliver(*arguments: Any) -> None:
            await deliver(*arguments)
            spent_s = OF_SERVER.pop(id(asyncio.current_task())) + time.perf_counter()
            self.delays.append(spent_s)

        session.reply = timed_reply
        session.deliver = timed_deliver
        return session


async def attempt(http: aiohttp.ClientSession, url: str, turns: int) -> None:
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{turn} {MESSAGE}"})
        async with http.post(f"{url}/chat/completions", json={"messages": messages}) as answer:
            messages.append((await answer.json())["choices"][0]["message"])


async def load(given: dict[str, Any]) -> None:
    """Runs the agents of some sessions."""
    free = asyncio.Semaphore(given["at_once"])

    async def one(url: str) -> None:
        async with free:
            await attempt(http, url, given["turns"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await asyncio.gather(*map(one, given["urls"]))


async def measured(arguments: Namespace, server: str, model: str) -> None:
    timed = Timed()
    pool = ServerPool(256)
    endpoint = Endpoint(EndpointOptions())
    async with open_session(None) as http:
        await pool.set_servers([server])
        sampling = Sampling("scripted", 1.0, TOKENS, seed=0)
        client = TimedClient(http, pool, sampling, conversations=TemplateConversations(model))
        await endpoint.open()
        try:
            print("| sessions | requests | ms of CPU a request | delay, median | delay, p99 | MiB |")
            print("|---|---|---|---|---|---|")
            for count in (arguments.at_once, arguments.sessions, arguments.sessions):
                await measure(arguments, count, endpoint, client, timed)
        finally:
            await endpoint.close()


async def measure(
    arguments: Namespace, count: int, endpoint: Endpoint, client: LLMClient, timed: Timed
) -> None:
    """Measures some sessions, all open from the beginning to the end."""
    timed.delays.clear()
    of_attempts = [client.of_attempt(f"{number}") for number in range(count)]
    keys = [endpoint.key_of(timed.session(each)) for each in of_attempts]
    given = {
        "urls": [f"{endpoint.url}/s/{key}/v1" for key in keys],
        "turns": arguments.turns,
        "at_once": arguments.at_once,
    }
    began = time.process_time()
    agents = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.agents", "--load", "-"), stdin=asyncio.subprocess.PIPE
    )
    await agents.communicate(json.dumps(given).encode())
    cpu_s = time.process_time() - began
    for key in keys:
        await endpoint.end([key])
    requests = len(timed.delays)
    median, p99 = np.quantile(timed.delays, [0.5, 0.99]) * 1000
    memory = psutil.Process().memory_info().rss / 2**20
    cpu_ms = 1000 * cpu_s / requests
    print(f"| {count} | {requests} | {cpu_ms:.2f} | {median:.1f} ms | {p99:.1f} ms | {memory:.0f} |")


def main(arguments: Namespace) -> None:
    if arguments.load:
        asyncio.run(load(json.load(sys.stdin)))
        return
    gc.freeze()  # as in an actor, which is forked with its modules imported
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryDirectory() as model,
        subprocess.Popen(SERVER, stdout=subprocess.PIPE, text=True, env=environment) as server,
    ):
        try:
            url = server.stdout.readline().removeprefix("listening at ").strip()
            asyncio.run(measured(arguments, url, make_tiny_model(model)))
        finally:
            server.kill()


if __name__ == "__main__":
    parser = command_parser("benchmarks.agents", __doc__)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--load", help="used by this command itself")
    main(parser.parse_args())
