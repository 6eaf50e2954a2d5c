"""Whatever a server answers, the trainer gets an answer, or one of two errors that it knows."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from pipelinerl.clients.server_control import ContractRefusalError, ServerControl

DEEP = "[" * 20_000 + "]" * 20_000


def asked(question: str, status: int, text: str, **headers: str) -> object:
    """What a question of ServerControl returns or raises, where every route gives this answer."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, headers=headers)

    async def scenario() -> object:
        app = web.Application()
        app.router.add_get("/{route:health|contract}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        try:
            async with aiohttp.ClientSession() as session:
                return await getattr(ServerControl(session, url), question)()
        except Exception as error:
            return error
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    "text", ['{"error": "no"}', '["no"]', "<html>", DEEP, "", '{"error": {"message": []}}']
)
@pytest.mark.parametrize("status", [404, 502])
def test_an_error_in_a_form_of_its_own_is_a_refusal(status, text):
    error = asked("contract", status, text)
    assert isinstance(error, ContractRefusalError), repr(error)
    assert (error.status, error.code) == (status, "unknown")


@pytest.mark.parametrize("text", ["<html>", DEEP, "", "null", "{}"])
def test_an_answer_outside_the_contract_is_a_value_error(text):
    assert isinstance(asked("contract", 200, text), ValueError)


def test_a_redirection_is_not_followed():
    error = asked("contract", 307, "", Location="/health")
    assert isinstance(error, ContractRefusalError), repr(error)
    assert error.status == 307


@pytest.mark.parametrize("text", ["<html>", DEEP, "", "[]", "{}"])
def test_who_says_nothing_of_its_health_is_unhealthy(text):
    assert asked("health_status", 503, text) == "unhealthy"
