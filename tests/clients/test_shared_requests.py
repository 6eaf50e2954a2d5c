"""Equal requests that begin together are choices of one exchange, and each is answered by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from pipelinerl.clients.completions import Asked, Sampling
from pipelinerl.clients.faults import (
    ConnectionBrokenError,
    InvalidResponseError,
    RequestRefusedError,
    ServerFailedError,
    ServerUnavailableError,
)
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.shared_requests import SharedRequests
from tests.clients.fake_servers import good_answer, serving

SAMPLING = Sampling("m", 1.0, 64)
ASKED = Asked([{"role": "user", "content": "x"}], SAMPLING)
MOST_4 = {"max_n": 4}
Handler = Callable[[web.Request, dict], Awaitable[web.StreamResponse]]


def line(index: int, **changes: object) -> bytes:
    """A choice of `index` + 1 tokens."""
    answer = good_answer(index + 1)
    answer["choices"][0] |= {"index": index} | changes
    return json.dumps(answer).encode() + b"\n"


@asynccontextmanager
async def served(handler: Handler, limits: dict | None = MOST_4) -> AsyncIterator[tuple[str, list[dict]]]:
    """Yields the URL of a server that answers by `handler`, and the bodies of the requests that it got."""
    bodies: list[dict] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        return await handler(request, bodies[-1])

    async def contract(request: web.Request) -> web.Response:
        return web.json_response({"capabilities": ["as_completed"], "limits": limits})

    async with serving(web.post("/v1/chat/completions", complete), web.get("/contract", contract)) as url:
        yield url, bodies


async def sent(request: web.Request, *lines: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    for each in lines:
        await response.write(each)
    return response


async def in_reverse(request: web.Request, body: dict) -> web.StreamResponse:
    if "n" not in body:
        return web.json_response(good_answer(1))
    return await sent(request, *map(line, reversed(range(body["n"]))))


def lengths(answers: list) -> list:
    return [len(each.completion.token_ids) if hasattr(each, "completion") else each for each in answers]


async def together(url: str, *asked: Asked, most: int = 8) -> list:
    async with open_session(token=None) as session:
        shared = SharedRequests(session)
        requests = [shared.complete(url, each, most) for each in asked]
        return await asyncio.gather(*requests, return_exceptions=True)


@pytest.mark.asyncio
async def test_each_gets_a_choice_of_its_own():
    async with served(in_reverse) as (url, bodies):
        answers = await together(url, ASKED, ASKED, ASKED)
    assert [(body["n"], body["as_completed"]) for body in bodies] == [(3, True)]
    assert lengths(answers) == [1, 2, 3]


@pytest.mark.asyncio
async def test_one_alone_is_asked_as_ever():
    async with served(in_reverse) as (url, bodies):
        assert lengths(await together(url, ASKED)) == [1]
    assert "n" not in bodies[0] and "as_completed" not in bodies[0]


@pytest.mark.asyncio
async def test_unequal_requests_are_not_shared_and_no_more_than_allowed_share_one():
    other = Asked([{"role": "user", "content": "y"}], SAMPLING)
    shorter = Asked(ASKED.prompt, replace(SAMPLING, max_tokens=32))
    async with served(in_reverse) as (url, bodies):
        answers = await together(url, ASKED, other, ASKED, shorter, ASKED, ASKED, most=3)
    assert sorted(body.get("n", 1) for body in bodies) == [1, 1, 1, 3]
    assert sorted(lengths(answers)) == [1, 1, 1, 1, 2, 3]


@pytest.mark.asyncio
async def test_a_choice_is_there_when_it_is_complete():
    first_has_come = asyncio.Event()

    async def one_after_the_other(request: web.Request, body: dict) -> web.StreamResponse:
        response = await sent(request, line(1)[:20])
        await response.write(line(1)[20:])
        await first_has_come.wait()
        await response.write(line(0))
        return response

    async with served(one_after_the_other) as (url, _), open_session(token=None) as session:
        shared = SharedRequests(session)
        tasks = [asyncio.create_task(shared.complete(url, ASKED, 8)) for _ in range(2)]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 1)
        first_has_come.set()
        assert sorted(lengths(await asyncio.gather(*tasks))) == [1, 2]


@pytest.mark.asyncio
async def test_who_leaves_takes_nothing_from_the_others_and_the_last_one_ends_the_exchange():
    has_begun = asyncio.Event()
    is_closed = asyncio.Event()
    goes_on = asyncio.Event()

    async def held(request: web.Request, body: dict) -> web.StreamResponse:
        has_begun.set()
        try:
            await goes_on.wait()
            response = await sent(request, line(0), line(1))
            await asyncio.Event().wait()
            return response
        finally:
            is_closed.set()

    async with served(held) as (url, _), open_session(token=None) as session:
        shared = SharedRequests(session)
        tasks = [asyncio.create_task(shared.complete(url, ASKED, 8)) for _ in range(3)]
        await has_begun.wait()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        goes_on.set()
        assert lengths([await tasks[1]]) == [2]
        assert not is_closed.is_set()
        tasks[2].cancel()
        await is_closed.wait()


BROKEN = {
    "an error in its status": ([], 503, ServerUnavailableError, "503"),
    "a refusal": ([{"error": {"code": "invalid_request"}}], 422, RequestRefusedError, "invalid_request"),
    "an error after a choice": (
        [line(0), b'{"error": {"code": "engine_failed"}}\n'],
        200,
        ServerFailedError,
        "engine",
    ),
    "weights lost": (
        [line(0), b'{"error": {"code": "weights_lost"}}\n'],
        200,
        ServerUnavailableError,
        "weights",
    ),
    "too few lines": ([line(0)], 200, ConnectionBrokenError, "connection"),
    "half a line": ([line(0), line(1)[:30]], 200, InvalidResponseError, "outside"),
    "a choice twice": ([line(0), line(0)], 200, InvalidResponseError, "choices"),
    "a choice too many": ([line(0), line(2)], 200, InvalidResponseError, "choices"),
    "no choice": ([line(0), b'{"choices": []}\n'], 200, InvalidResponseError, "choices"),
    "no object": ([line(0), b"[]\n"], 200, InvalidResponseError, "outside"),
    "a taken over server": ([line(0), line(1, finish_reason="abort")], 200, ServerUnavailableError, "abort"),
    "a line without an end": ([line(0), b"x" * 2**25], 200, InvalidResponseError, "line"),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("fault", BROKEN)
async def test_whoever_has_no_answer_is_told_why(fault):
    lines, status, kind, says = BROKEN[fault]

    async def broken(request: web.Request, body: dict) -> web.StreamResponse:
        if status != 200:
            return web.json_response(lines[0] if lines else {}, status=status)
        return await sent(request, *lines)

    async with served(broken) as (url, _):
        answers = await together(url, ASKED, ASKED)
    failed = [each for each in answers if isinstance(each, Exception)]
    assert len(failed) == (2 if status != 200 else 1)
    assert all(type(error) is kind and says in str(error) for error in failed), failed
    assert len({id(error) for error in failed}) == len(failed)


@pytest.mark.asyncio
async def test_a_choice_that_is_wrong_by_itself_fails_its_own_member_alone():
    async def one_wrong(request: web.Request, body: dict) -> web.StreamResponse:
        return await sent(request, line(0), line(1, finish_reason="abort"), line(2))

    async with served(one_wrong) as (url, _):
        first, wrong, last = await together(url, ASKED, ASKED, ASKED)
    assert lengths([first, last]) == [1, 3]
    assert isinstance(wrong, ServerUnavailableError) and str(wrong) == "abort"


@pytest.mark.asyncio
async def test_an_endless_refusal_is_not_read():
    async def endless(request: web.Request, body: dict) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        while True:
            await response.write(b"x\n" * 2**19)

    async with served(endless) as (url, _):
        errors = await together(url, ASKED, ASKED)
    assert [type(error) for error in errors] == [InvalidResponseError] * 2


@pytest.mark.asyncio
async def test_the_end_of_the_body_is_read_so_that_the_connection_is_kept():
    are_answered = asyncio.Event()
    is_kept: list[bool] = []

    async def ends_late(request: web.Request, body: dict) -> web.StreamResponse:
        response = await sent(request, line(0), line(1))
        try:
            await are_answered.wait()
        except asyncio.CancelledError:
            is_kept.append(False)
            raise
        is_kept.append(request.transport is not None and not request.transport.is_closing())
        return response

    async with served(ends_late) as (url, _), open_session(token=None) as session:
        shared = SharedRequests(session)
        await asyncio.gather(*(shared.complete(url, ASKED, 8) for _ in range(2)))
        await (await session.get(f"{url}/contract")).read()  # by then a closed connection has been seen
        are_answered.set()
        while not is_kept:
            await asyncio.sleep(0)
    assert is_kept == [True]


@pytest.mark.asyncio
async def test_seeded_and_greedy_requests_are_not_shared_and_a_server_s_own_limit_holds():
    alone = [replace(SAMPLING, seed=1), replace(SAMPLING, temperature=0.0)]
    async with served(in_reverse) as (url, bodies), open_session(token=None) as session:
        forms = ServerForms(session)
        await forms.complete(url, ASKED.prompt, SAMPLING)
        del bodies[:]
        await asyncio.gather(*(forms.complete(url, ASKED.prompt, each) for each in alone for _ in range(2)))
        assert [body.get("n") for body in bodies] == [None] * 4
        del bodies[:]
        await asyncio.gather(*(forms.complete(url, ASKED.prompt, SAMPLING) for _ in range(6)))
        assert sorted(body.get("n", 1) for body in bodies) == [2, 4]


@pytest.mark.asyncio
async def test_a_body_that_does_not_end_keeps_no_connection():
    closed = asyncio.Event()

    async def without_an_end(request: web.Request, body: dict) -> web.StreamResponse:
        response = await sent(request, line(0), line(1))
        try:
            await asyncio.Event().wait()
        finally:
            closed.set()
        return response

    async with served(without_an_end) as (url, _), open_session(token=None) as session:
        shared = SharedRequests(session)
        answers = await asyncio.gather(*(shared.complete(url, ASKED, 8) for _ in range(2)))
        await closed.wait()
    assert lengths(answers) == [1, 2]
