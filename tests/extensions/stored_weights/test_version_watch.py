"""Servers that pull weights get requests only while their weights may be used."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from contracts.inference import ContractInfo, EngineInfo, ProcessFigures, WeightsInfo
from contracts.records import WeightsPublished
from extensions.stored_weights.actor import version_watch
from extensions.stored_weights.actor.served_versions import UNKNOWN, ServedVersions
from extensions.stored_weights.actor.version_watch import VersionWatch
from pipelinerl.clients.server_pool import ServerPool
from tests.clients.fake_servers import serving

INFO = EngineInfo(
    engine="fake", engine_version="1", model="m", backends=[], accepts_dtypes=[], kv_cache=[], capabilities=[]
)


def weights(version: int, run: str | None = "r", state: str = "live") -> WeightsInfo:
    return WeightsInfo(version=version, state=state, run=run)


def versions(most_behind: int | None, newest: int) -> ServedVersions:
    known = ServedVersions(most_behind)
    known.published("r", newest)
    return known


@pytest.mark.parametrize(
    ("served", "why"),
    [
        (weights(5), None),
        (weights(3), None),
        (weights(3, state="receiving"), None),
        (weights(2), "its version 2 is 3 behind"),
        (weights(6), "its version 6 is newer than the run's"),
        (weights(5, run="another"), "its weights are not of this run"),
        (weights(5, run=None), "its weights are not of this run"),
        (weights(5, state="lost"), "its weights are lost"),
    ],
)
def test_why_a_server_is_held(served, why):
    known = versions(most_behind=2, newest=5)
    assert known.why_held("a", known.oldest_usable) == UNKNOWN
    known.observe("a", served)
    assert known.why_held("a", known.oldest_usable) == why


def test_without_a_limit_no_version_of_the_run_is_too_old():
    known = versions(most_behind=None, newest=50)
    known.observe("a", weights(0))
    assert known.why_held("a", known.oldest_usable) is None
    assert known.why_held("a", 50) == "its version 0 is 50 behind"


def test_the_run_is_as_far_behind_as_the_slowest_server_that_is_used():
    known = versions(most_behind=2, newest=5)
    for url, version in {"a": 5, "b": 3, "c": 1}.items():
        known.observe(url, weights(version))
    assert known.behind(["a"]) == 0
    assert known.behind(["a", "b", "c", "never heard of"]) == 2
    assert known.behind(["c"]) == 0


@dataclass
class Puller:
    """A server that says which weights it serves, or hangs."""

    weights: WeightsInfo = field(default_factory=lambda: weights(0))
    hangs: bool = False
    url: str = ""

    async def contract(self, request: web.Request) -> web.Response:
        if self.hangs:
            await asyncio.Event().wait()
        figures = ProcessFigures(resident_bytes=0, running=0, waiting=0)
        info = ContractInfo(**INFO.model_dump(), run="r", group=None, weights=self.weights, process=figures)
        return web.json_response(info.model_dump())


@asynccontextmanager
async def served(*servers: Puller) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for server in servers:
            routes = serving(web.get("/contract", server.contract))
            server.url = await stack.enter_async_context(routes)
        yield


@dataclass
class Watched:
    """A pool whose servers are watched, as the actor does it."""

    pool: ServerPool
    watch: VersionWatch
    changes: list[None]

    async def publish(self, version: int, *servers: Puller) -> None:
        urls = [server.url for server in servers]
        published = WeightsPublished(
            run="r", version=version, servers=urls, seconds=0.0, bytes=0, paused_s=0.0, live=[0] * len(urls)
        )
        self.watch.published(published)
        await self.pool.set_servers(urls)

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(version_watch, "EVERY_S", 0.02)


@asynccontextmanager
async def watched(*servers: Puller, most_behind: int | None = 1) -> AsyncIterator[Watched]:
    changes: list[None] = []
    pool = ServerPool(4)
    async with served(*servers), aiohttp.ClientSession() as session:
        watch = VersionWatch(session, most_behind, lambda: changes.append(None))
        watch.watch(pool)
        async with watch.running():
            yield Watched(pool, watch, changes)


@pytest.mark.asyncio
async def test_a_server_gets_requests_once_it_has_said_what_it_serves():
    server = Puller(weights(7, run="an older run"))
    async with watched(server) as run:
        await run.publish(0, server)
        assert run.pool.has_no_usable_server and not run.pool.is_empty and run.pool.capacity == 0
        await run.until(lambda: run.pool.held == {server.url: "its weights are not of this run"})
        server.weights = weights(0)
        await run.until(lambda: not run.pool.has_no_usable_server)
        assert run.pool.capacity == 4 and run.changes


@pytest.mark.asyncio
async def test_a_request_waits_for_weights_and_none_is_called_off():
    server = Puller()
    async with watched(server) as run:
        await run.publish(0, server)
        async with run.pool.server() as early:
            await run.publish(2, server)  # it is two behind at once, before it is asked again
            assert run.pool.has_no_usable_server and run.pool.capacity == run.pool.in_flight == 1
            waiting = asyncio.create_task(anext(aiter(request(run.pool))))
            server.weights = weights(2)
            assert await waiting == early == server.url
        assert run.watch.behind == 0


async def request(pool: ServerPool) -> AsyncIterator[str]:
    async with pool.server() as url:
        yield url


@pytest.mark.asyncio
async def test_a_server_that_hangs_delays_no_other():
    hung = Puller(hangs=True)
    good = Puller()
    async with watched(hung, good) as run:
        await run.publish(0, hung, good)
        await run.until(lambda: good.url not in run.pool.held)
        assert run.pool.held == {hung.url: UNKNOWN}
        good.weights = weights(1)
        await run.publish(1, hung, good)
        await run.until(lambda: run.watch.behind == 0)


@pytest.mark.asyncio
async def test_a_server_that_left_is_held_when_another_comes_at_its_address():
    server = Puller()
    async with watched(server) as run:
        await run.publish(0, server)
        await run.until(lambda: not run.pool.has_no_usable_server)
        run.watch.forget(server.url)
        run.pool.forget(server.url)
        server.weights = weights(0, run=None)  # as it starts, with a model of its own
        await run.publish(0, server)
        assert run.pool.has_no_usable_server
        await run.until(lambda: run.pool.held == {server.url: "its weights are not of this run"})


@pytest.mark.asyncio
async def test_an_evaluation_holds_the_servers_that_have_not_its_version():
    server = Puller(weights(3))
    needed = [3]
    async with watched(server, most_behind=9) as run:
        of_evaluation = ServerPool(4)
        run.watch.watch(of_evaluation, lambda: needed[0])
        await run.publish(4, server)
        await of_evaluation.set_servers([server.url])
        await run.until(lambda: not run.pool.has_no_usable_server and not of_evaluation.has_no_usable_server)
        needed[0] = 4
        run.watch.recheck()
        assert of_evaluation.has_no_usable_server and not run.pool.has_no_usable_server
        server.weights = weights(4)
        await of_evaluation.some_server()


@pytest.mark.asyncio
async def test_an_error_of_our_own_ends_no_watch(caplog):
    server = Puller(weights(0))
    errors = [KeyError("of our own")]

    def oldest() -> int:
        if server.weights.version == 1 and errors:
            raise errors.pop()
        return 0

    async with watched(server, most_behind=9) as run:
        run.watch.watch(ServerPool(4), oldest)
        await run.publish(0, server)
        await run.until(lambda: not run.pool.has_no_usable_server)
        server.weights = weights(1)
        await run.until(lambda: not errors)
        server.weights = weights(0, run=None)
        await run.until(lambda: run.pool.has_no_usable_server)
    assert "is asked again which weights it serves" in caplog.text
