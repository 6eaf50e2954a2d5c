"""Sends hostile requests, many at a time, beside a client that only generates, and judges the answers."""

import asyncio
import contextlib
import itertools
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from contracts.errors import ErrorCode
from tests.inference_adapters.hostile_requests import Hostile, mutations, table
from tests.inference_adapters.servers import Server

AT_A_TIME = 16
PATIENCE_S = 2.0  # for the answer to a mutation, which may ask for the longest completion there is
LIMIT_S = 60.0  # for the answer to a request of the table
CODES = {code.code: code for code in ErrorCode}
FIELDS = {"code", "message", "type", "param"}  # of an error
COUNT = int(os.environ.get("HOSTILE_REQUESTS", "500"))
SEED = int(os.environ.get("SEED", "0"))
MEBIBYTE = 2**20
# What the requests that are under way at a time take together, most of all the long texts, and the allocator
# may keep for the next ones. It does not grow with their number: a leak of 10 kB a request exceeds it.
MOST_GROWN = 96 * MEBIBYTE


@dataclass
class Onslaught:
    """What came of it."""

    sent: int = 0
    given_up: int = 0
    faults: list[str] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)  # how many of each status
    normal: int = 0  # answers to the normal client
    grown_bytes: int = 0  # by which the engine's processes grew after the first part


def harm_nobody(server: Server, model: str, token: str | None = None) -> None:
    """Asserts that a server withstands the requests: the same process, every answer right, memory flat."""
    outcome = asyncio.run(onslaught(server, model, COUNT, SEED, token))
    print(outcome)
    assert server.process.poll() is None
    assert outcome.faults == []
    assert outcome.sent == COUNT and outcome.given_up < COUNT / 20, outcome
    assert outcome.answers[200] > COUNT / 50 and outcome.answers[400] > COUNT / 10, outcome
    assert outcome.normal > 10 and outcome.grown_bytes < MOST_GROWN, outcome


async def onslaught(
    server: Server, model: str, count: int, seed: int = 0, token: str | None = None
) -> Onslaught:
    """Sends `count` requests: the table, then mutations. The normal client has its own connections."""
    outcome = Onslaught()
    requests = itertools.islice(itertools.chain(table(model, token), mutations(model, token, seed)), count)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(server.url, headers=headers, timeout=aiohttp.ClientTimeout(60)) as http:
        normal = [asyncio.create_task(_generate(http, model, outcome, stream)) for stream in (False, True)]
        try:
            # The table has every kind of request: what is cached or grown once is there after it.
            await _send_all(server, itertools.islice(requests, min(count // 2, 450)), outcome)
            before = await _resident_bytes(http)
            await _send_all(server, requests, outcome)
        finally:
            for task in normal:
                task.cancel()
            ended = await asyncio.gather(*normal, return_exceptions=True)
        outcome.grown_bytes = await _resident_bytes(http) - before
    outcome.faults += [repr(end) for end in ended if not isinstance(end, asyncio.CancelledError)]
    return outcome


async def _send_all(server: Server, requests, outcome: Onslaught) -> None:
    async def work() -> None:
        for request in requests:
            if server.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with status {server.process.returncode}: {outcome.faults}"
                )
            outcome.sent += 1
            try:
                if fault := await fault_of(server.url, request, outcome.answers):
                    outcome.faults.append(f"{request.name}: {fault}")
            except TimeoutError:
                outcome.given_up += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_A_TIME):
            tasks.create_task(work())


async def fault_of(url: str, request: Hostile, answers: Counter[int]) -> str | None:
    """What is wrong with the answer, or None. Raises TimeoutError where the request may take long."""
    address = urlsplit(url)
    must_answer = request.statuses is not None
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        with contextlib.suppress(ConnectionError):  # a server may refuse what it has not read to its end
            writer.write(request.data)
            await writer.drain()
        if request.hang_up == "unread":
            return None
        async with asyncio.timeout(LIMIT_S if must_answer else PATIENCE_S):
            received = await _received(reader, 1 if request.hang_up == "after a byte" else None)
    except TimeoutError:
        if must_answer:
            return f"no answer in {LIMIT_S:g} s"
        raise
    finally:
        writer.close()
    if request.hang_up == "after a byte":
        return None
    if not request.is_http:
        return None if not received or b" 400 " in received[:20] else f"answered {received[:80]!r}"
    return _fault_of_answer(request, received, answers)


async def _received(reader: asyncio.StreamReader, most: int | None) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while most is None or len(received) < most:
            piece = await reader.read(65536 if most is None else most)
            if not piece:
                break
            received += piece
    return received


def _fault_of_answer(request: Hostile, received: bytes, answers: Counter[int]) -> str | None:
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return f"no answer: {received[:200]!r}"
    status = int(head[9:12])
    answers[status] += 1
    if b"transfer-encoding: chunked" in head.lower():
        body = _unchunked(body)
    shown = f"{status} {body[:300]!r}"
    if request.statuses is not None and status not in request.statuses:
        return f"{shown} is none of {request.statuses}"
    if status < 400:
        return shown if b"engine_failed" in body else None  # in a stream
    if request.data.startswith(b"HEAD"):
        return None
    try:
        code = json.loads(body)["error"]["code"]
        assert set(json.loads(body)) == {"error"} and set(json.loads(body)["error"]) == FIELDS
    except (ValueError, KeyError, TypeError, AssertionError):
        return f"{shown} is not the contract's error"
    path = request.data.split(maxsplit=2)[1].decode(errors="replace")
    if code not in CODES or CODES[code].status_at(path) != status:
        return f"{shown}: that is not the code's status"
    if status >= 500 and code not in ("overloaded", "rendezvous_timeout"):
        return shown
    return None


def _unchunked(body: bytes) -> bytes:
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        content += body[:length]
        body = body[length + 2 :]
    return content


# --- the normal client -------------------------------------------------------------------------------

PROMPTS = [[5, 6, 7, 8], [20, 21], [40, 41, 42, 43, 44, 45]]
TOKENS = 12


async def _generate(http: aiohttp.ClientSession, model: str, outcome: Onslaught, stream: bool) -> None:
    """Generates again and again, greedily, and wants the same each time."""
    first: dict[int, list[int]] = {}
    for number in itertools.count():
        which = number % len(PROMPTS)
        body = {
            "model": model,
            "prompt": PROMPTS[which],
            "max_tokens": TOKENS,
            "temperature": 0,
            "logprobs": True,
        }
        async with http.post("/v1/completions", json=body | {"stream": stream}) as answer:
            text = await answer.text()
        assert answer.status == 200, f"the normal client was answered {answer.status} {text}"
        bodies = [json.loads(text)] if not stream else _events(text)
        choices = [choice for chunk in bodies for choice in chunk["choices"]]
        ids = [token_id for choice in choices for token_id in choice["token_ids"]]
        logprobs = [item["logprob"] for c in choices if c["logprobs"] for item in c["logprobs"]["content"]]
        assert len(ids) == len(logprobs) and all(-100 < logprob <= 0 for logprob in logprobs), text
        assert choices[-1]["finish_reason"] in ("stop", "length") and choices[-1]["weight_versions"], text
        assert first.setdefault(which, ids) == ids, (first, ids)
        outcome.normal += 1


def _events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]", text
    return [json.loads(line) for line in lines[:-1]]


async def _resident_bytes(http: aiohttp.ClientSession) -> int:
    """Of an engine that has at most the normal client's requests left."""
    async with asyncio.timeout(30):
        while True:
            async with http.get("/contract") as answer:
                process = (await answer.json())["process"]
            if process["running"] + process["waiting"] <= 2:
                return process["resident_bytes"]
            await asyncio.sleep(0.1)
