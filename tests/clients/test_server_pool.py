import asyncio
import contextlib

import pytest

from pipelinerl.clients.server_pool import ServerPool, ServerUnavailableError


def test_spreads_requests_and_respects_the_limit():
    async def scenario():
        pool = ServerPool(limit=2)
        await pool.set_servers(["a", "b"])
        released, taken = asyncio.Event(), []

        async def request():
            async with pool.server() as url:
                taken.append(url)
                await released.wait()

        tasks = [asyncio.create_task(request()) for _ in range(5)]
        await wait_until(lambda: len(taken) == 4)
        assert sorted(taken) == ["a", "a", "b", "b"] and pool.in_flight == 4
        released.set()
        await asyncio.gather(*tasks)
        assert len(taken) == 5 and pool.in_flight == 0

    asyncio.run(scenario())


def test_a_server_that_comes_back_still_has_its_old_requests():
    async def scenario():
        pool, released = ServerPool(limit=1), asyncio.Event()
        await pool.set_servers(["a", "b"])

        async def request():
            async with pool.server():
                await released.wait()

        tasks = [asyncio.create_task(request()) for _ in range(2)]
        await wait_until(lambda: pool.in_flight == 2)
        await pool.set_servers(["a"])
        assert (pool.capacity, pool.in_flight) == (2, 1)  # whoever counts both requests starts no third
        await pool.set_servers(["a", "b"])
        assert (pool.capacity, pool.in_flight) == (2, 2)
        released.set()
        await asyncio.gather(*tasks)
        assert (pool.capacity, pool.in_flight) == (2, 0)

    asyncio.run(scenario())


def test_a_failing_server_rests_while_the_others_are_busy():
    """However many requests wait, a dead server gets one at a time, with rests that grow."""

    async def scenario():
        pool, attempted = ServerPool(limit=2), 0
        await pool.set_servers(["dead", "alive"])

        async def request():
            nonlocal attempted
            async with pool.server() as url:
                if url == "dead":
                    attempted += 1
                    raise ServerUnavailableError
                await asyncio.sleep(0.05)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:
                    await asyncio.gather(*(request() for _ in range(8)), return_exceptions=True)
        assert 1 <= attempted <= 2 + 3  # two at once before the first failed; then after 0.2, 0.4, 0.8 s

    asyncio.run(scenario())


def test_a_failing_server_is_trusted_again_when_it_is_named_again():
    async def scenario():
        pool = ServerPool(limit=4)
        await pool.set_servers(["a", "b"])
        with pytest.raises(ServerUnavailableError):
            async with pool.server() as bad:
                raise ServerUnavailableError
        for _ in range(3):
            async with pool.server() as url:
                assert url != bad
        await pool.set_servers(["a", "b"])
        async with pool.server() as one, pool.server() as other:
            assert {one, other} == {"a", "b"}

    asyncio.run(scenario())


def test_the_gate_waits_for_requests_in_flight_and_holds_new_ones():
    async def scenario():
        pool = ServerPool(limit=4)
        await pool.set_servers(["a"])
        async with pool.server():
            closing = asyncio.create_task(pool.close_gate())
            held = asyncio.create_task(pool.server().__aenter__())
            await asyncio.sleep(0)
            assert not closing.done()
        await closing
        assert not held.done()
        await pool.open_gate()
        assert await held == "a"

    asyncio.run(scenario())


async def wait_until(condition) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)
