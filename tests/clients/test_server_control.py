"""What the publisher reads of a server's answers, whatever the server sends."""

import asyncio
import gc
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ContractRefusalError, ServerControl
from pipelinerl.training.membership.candidates import is_hopeless
from tests.clients.fake_servers import endless, serving
from tests.limits import HANG_S


@asynccontextmanager
async def answering(answer):
    gc.collect()  # a finalizer that runs amid a deep answer would meet the recursion limit too
    async with serving(web.route("*", "/{path:.*}", answer)) as url:
        yield url


def says(text: str, status: int, **headers: str):
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, headers=headers)

    return answer


def failure_of(answer) -> Exception:
    async def scenario() -> None:
        async with answering(answer) as url, open_session(None) as session:
            await ServerControl(session, url).contract(HANG_S)

    with pytest.raises((aiohttp.ClientError, ContractRefusalError)) as caught:
        asyncio.run(scenario())
    return caught.value


@pytest.mark.parametrize(
    "answer",
    [
        says("<html>Bad Gateway</html>", 502),
        says("<html>Welcome</html>", 200),
        says("[]", 200),
        says('{"a":' * 100_000, 500),
        says('{"error": "no"}', 503),
        says("", 307, Location="/elsewhere"),
        endless,
    ],
    ids=["a proxy's error", "a proxy's page", "a list", "nested", "an error in words", "moved", "endless"],
)
def test_an_answer_outside_the_contract_is_a_failure_that_may_pass(answer):
    assert not is_hopeless(failure_of(answer))


def test_a_refusal_names_the_code_and_keeps_its_message_short():
    failure = failure_of(says('{"error": {"code": "other_run", "message": "' + "x" * 100_000 + '"}}', 409))
    assert failure.code == "other_run" and len(str(failure)) < 3000
    assert is_hopeless(failure)


@pytest.mark.parametrize("text", ["<html>", '{"a":' * 100_000, "", "[]", "{}"])
def test_who_says_nothing_of_its_health_is_unhealthy(text):
    async def scenario() -> str:
        async with answering(says(text, 503)) as url, open_session(None) as session:
            return await ServerControl(session, url).health_status()

    assert asyncio.run(scenario()) == "unhealthy"
