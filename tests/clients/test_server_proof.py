"""The token goes only to who knows it: real servers and impostors on real sockets."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from contracts.challenge import address_of, proof_of
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.clients import server_proof
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_proof import UnprovenServerError, is_own_listener
from tests.clients import fake_servers
from tests.inference_adapters.servers import serving, wait_ready
from tests.ports import free_port

TOKEN = "s3cret"
ENVIRONMENT = {TOKEN_VARIABLE: TOKEN}
NOBODY = 65534


class Listener:
    """An HTTP server of the test's own process, which remembers what it was sent."""

    def __init__(self, health) -> None:
        self.health = health  # of the challenge and the address: what /health answers
        self.challenges = 0
        self.tokens: set[str | None] = set()
        self.others = 0
        self.redirects_to: str | None = None
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        if request.path != "/health":
            self.others += 1
            if self.redirects_to:
                raise web.HTTPTemporaryRedirect(self.redirects_to)
            return web.json_response({})
        self.challenges += 1
        where = address_of(*request.transport.get_extra_info("sockname")[:2])
        answer = await self.health(request.query.get("challenge"), where)
        return web.json_response(answer, status=self.status)


@contextlib.asynccontextmanager
async def listening(health, port: int = 0) -> AsyncIterator[tuple[str, Listener]]:
    """The URL of a listener, and the listener."""
    listener = Listener(health)
    async with fake_servers.serving(web.route("*", "/{path:.*}", listener.answer), port=port) as url:
        yield url, listener


async def knows_the_token(challenge: str, address: str) -> dict:
    return {"status": "ready", "proof": proof_of(TOKEN, challenge, address), "address": address}


async def of_version_1(challenge: str, address: str) -> dict:
    return {"status": "ready"}


async def guesses(challenge: str, address: str) -> dict:
    return {"status": "ready", "proof": proof_of("guess", challenge, address), "address": address}


async def answers_oddly(challenge: str, address: str) -> dict:
    return {"status": ["ready"], "proof": 3}


async def ask(url: str) -> int:
    async with open_session(TOKEN) as session, session.get(f"{url}/contract") as answer:
        return answer.status


def test_a_real_server_is_given_the_token_by_each_of_its_names():
    async def read(url: str) -> str:
        async with open_session(TOKEN) as session:
            return (await ServerControl(session, url).contract()).engine

    with serving("inference_adapters.scripted", environment=ENVIRONMENT) as server:
        wait_ready(server.url)
        port = server.url.rpartition(":")[2]
        for url in (server.url, f"http://localhost:{port}"):
            assert asyncio.run(read(url)) == "scripted"


@pytest.mark.asyncio
@pytest.mark.parametrize("health", [guesses, answers_oddly])
async def test_an_impostor_is_not_sent_the_token(health, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)  # the listener belongs to another user
    async with listening(health) as (url, impostor):
        with pytest.raises(UnprovenServerError, match=url):
            await ask(url)
    assert impostor.tokens == {None} and impostor.others == 0


@pytest.mark.asyncio
async def test_a_server_that_is_full_is_no_impostor():
    async def full(challenge, where):
        return {"error": {"code": "overloaded", "message": "4096 connections are open"}}

    async with listening(full) as (url, listener), open_session(TOKEN) as session:
        listener.status = 503
        with pytest.raises(aiohttp.ClientConnectionError, match="overloaded") as error:
            await session.get(f"{url}/contract")
        assert not isinstance(error.value, UnprovenServerError)
        assert listener.tokens == {None}


@pytest.mark.asyncio
async def test_a_proof_that_is_passed_on_from_a_real_server_is_refused():
    with serving("inference_adapters.scripted", environment=ENVIRONMENT) as real:
        wait_ready(real.url)

        async def relays(challenge: str, address: str) -> dict:
            headers = {"Host": address}  # as if it had been asked here
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{real.url}/health?challenge={challenge}", headers=headers) as answer,
            ):
                return await answer.json()

        async def lies(challenge: str, address: str) -> dict:
            return await relays(challenge, address) | {"address": address}

        for health in (relays, lies):
            async with listening(health) as (url, impostor):
                with pytest.raises(UnprovenServerError, match=url):
                    await ask(url)
            assert impostor.challenges == 1 and impostor.tokens == {None}


@pytest.mark.asyncio
async def test_who_takes_the_port_of_a_dead_server_is_not_sent_the_token(caplog):
    port = free_port()
    with serving("inference_adapters.scripted", "--port", str(port), environment=ENVIRONMENT) as server:
        await asyncio.to_thread(wait_ready, server.url)
        async with open_session(TOKEN) as session:
            await ServerControl(session, server.url).contract()
            server.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(server.process.wait, 10)
            async with listening(guesses, port) as (url, impostor):
                for _ in range(3):
                    with pytest.raises(aiohttp.ClientConnectionError):
                        await ServerControl(session, url).contract()
    assert impostor.tokens == {None} and impostor.others == 0
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        f"http://127.0.0.1:{port} does not know the token"
    ]  # told once


@pytest.mark.asyncio
async def test_a_redirection_takes_the_token_nowhere():
    async with listening(guesses) as (elsewhere, impostor), listening(knows_the_token) as (url, real):
        real.redirects_to = f"{elsewhere}/contract"
        with pytest.raises(UnprovenServerError, match=elsewhere):
            await ask(url)
    assert real.others == 1 and impostor.tokens == {None}


@pytest.mark.asyncio
async def test_every_new_connection_follows_a_proof_and_a_burst_of_them_shares_it():
    async with listening(knows_the_token) as (url, server), open_session(TOKEN) as session:

        async def once() -> None:
            async with session.get(f"{url}/contract") as answer:
                assert answer.status == 200

        await asyncio.gather(*(once() for _ in range(100)))
        assert server.others == 100 and 1 <= server.challenges <= 20
        asked = server.challenges
        await once()  # over a connection that is open
        assert server.challenges == asked
    assert server.tokens == {None, f"Bearer {TOKEN}"}


# --- servers of version 1 -------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_server_of_version_1_of_our_own_user_here_is_trusted():
    async with listening(of_version_1) as (url, server):
        assert await ask(url) == 200
    assert server.tokens == {None, f"Bearer {TOKEN}"}


@pytest.mark.asyncio
async def test_one_of_another_user_is_refused_with_what_to_do(monkeypatch):
    async with listening(of_version_1) as (url, server):
        monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        with pytest.raises(UnprovenServerError, match="start a server that keeps version 2"):
            await ask(url)
    assert server.tokens == {None}


def test_listeners_are_found_by_address_and_port():
    with serving("inference_adapters.scripted") as server:
        port = int(server.url.rpartition(":")[2])
        assert is_own_listener(f"127.0.0.1:{port}")
        assert not is_own_listener(f"127.0.0.2:{port}")
        assert not is_own_listener(f"[::1]:{port}")
    assert not is_own_listener(f"127.0.0.1:{port}")


def test_a_listener_of_another_user_is_not_our_own(tmp_path, monkeypatch):
    (tmp_path / "tcp").write_text(
        "  sl\n 0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 65534 0 7\n"
    )
    monkeypatch.setattr(server_proof, "TABLES", [tmp_path / "tcp"])
    assert not is_own_listener("127.0.0.1:8080")
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    assert is_own_listener("127.0.0.1:8080")


def test_one_address_has_one_form():
    assert address_of("::ffff:127.0.0.1", 8000) == address_of("127.0.0.1", 8000) == "127.0.0.1:8000"
    assert address_of("fe80::1%eth0", 8000) == "[fe80::1]:8000"
