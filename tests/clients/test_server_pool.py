import asyncio
import contextlib

import pytest

from pipelinerl.clients.attempt_clock import AttemptClock
from pipelinerl.clients.faults import ServerUnavailableError
from pipelinerl.clients.server_pool import ServerPool
from tests.limits import HANG_S
from tests.virtual_time import in_virtual_time, pass_time

TURNS = 6  # of the loop, in which all that a freed place sets off has run


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_spared_server_that_comes_back_still_has_its_old_requests():
    pool, released = ServerPool(limit=1), asyncio.Event()
    await pool.set_servers(["a", "b"])

    async def request():
        async with pool.server():
            await released.wait()

    tasks = [asyncio.create_task(request()) for _ in range(2)]
    await wait_until(lambda: pool.in_flight == 2)
    await pool.set_servers(["a"], sparing=["b"])
    assert (pool.capacity, pool.in_flight) == (2, 1)  # whoever counts both requests starts no third
    await pool.set_servers(["a", "b"])
    assert (pool.capacity, pool.in_flight) == (2, 2)
    released.set()
    await asyncio.gather(*tasks)
    assert (pool.capacity, pool.in_flight) == (2, 0)


@pytest.mark.asyncio
async def test_the_gate_waits_for_requests_in_flight_and_holds_new_ones():
    pool = ServerPool(limit=4)
    await pool.set_servers(["a"])
    async with pool.server():
        closing = asyncio.create_task(pool.pause())
        held = asyncio.create_task(pool.server().__aenter__())
        await asyncio.sleep(0)
        assert not closing.done()
    await closing
    assert not held.done()
    await pool.resume()
    assert await held == "a"


@pytest.mark.asyncio
async def test_while_servers_sleep_requests_wait_where_they_are_and_time_stands_still():
    pool = ServerPool(limit=4)
    await pool.set_servers(["a"])
    async with asyncio.timeout(HANG_S) as limit, pool.server():
        with pool.timing(AttemptClock(limit)):
            pool.suspend()
            queued = asyncio.create_task(pool.server().__aenter__())
            await turns()
            assert (pool.in_flight, queued.done(), limit.when()) == (1, False, None)
            await pool.set_servers(["a"])
            assert limit.when() is None
            await pool.resume()
            assert await queued == "a" and limit.when() is not None


@pytest.mark.asyncio
async def test_requests_on_a_server_that_is_left_out_are_called_off_and_the_others_are_not():
    pool, released = ServerPool(limit=2), asyncio.Event()
    await pool.set_servers(["a", "b"])
    ended = {"a": [], "b": []}

    async def request():
        try:
            async with pool.server() as url:
                await released.wait()
        except ServerUnavailableError as error:
            ended["b"].append(str(error))
        else:
            ended[url].append("answered")

    tasks = [asyncio.create_task(request()) for _ in range(4)]
    await wait_until(lambda: pool.in_flight == 4)
    pool.leave_out("b")
    await wait_until(lambda: len(ended["b"]) == 2)
    third = asyncio.create_task(request())
    pool.leave_out("a")  # the last one in service: its requests wait for it
    released.set()
    await asyncio.gather(*tasks, third)
    assert ended == {"a": ["answered"] * 3, "b": ["left_out"] * 2}
    pool.take_back("b")
    async with pool.server() as one, pool.server() as other:
        assert {one, other} == {"a", "b"}
        third = asyncio.create_task(pool.server(avoid="a").__aenter__())
        await turns()
        assert not third.done()  # b begins with one request
        third.cancel()


@pytest.mark.asyncio
async def test_a_removed_servers_requests_are_called_off_and_the_gate_closes():
    pool = ServerPool(limit=1)
    await pool.set_servers(["hung", "alive"])

    async def request():
        async with pool.server():
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await wait_until(lambda: pool.in_flight == 1)
    closing = asyncio.create_task(pool.pause())
    await pool.set_servers(["alive"])
    with pytest.raises(ServerUnavailableError, match="left_out"):
        await task
    await closing


def test_requests_wait_for_the_only_servers_return_and_their_time_stands_still():
    async def scenario():
        pool, asked = ServerPool(limit=2), []
        await pool.set_servers(["a"])

        async def attempt():
            async with asyncio.timeout(1) as timeout:
                with pool.timing(AttemptClock(timeout)):
                    with contextlib.suppress(ServerUnavailableError):
                        async with pool.server() as url:
                            asked.append(url)
                            await asyncio.Event().wait()
                    async with pool.server(avoid=url) as url:
                        asked.append(url)

        task = asyncio.create_task(attempt())
        await wait_until(lambda: asked == ["a"])
        pool.forget("a")
        late = asyncio.create_task(attempt())
        assert (pool.capacity, pool.urls) == (0, [])
        await turns()
        pass_time(10)
        await turns()
        assert asked == ["a"] and not late.done()
        await pool.set_servers(["b"])
        await task
        assert asked == ["a", "b", "b"]
        pass_time(1)  # of an attempt that waits for its server
        with pytest.raises(TimeoutError):
            await late

    in_virtual_time(scenario())


@pytest.mark.asyncio
async def test_a_server_that_drains_ends_its_requests_and_gets_no_more():
    pool = ServerPool(limit=2)
    await pool.set_servers(["a", "b"])
    async with pool.server(avoid="b") as url:
        pool.forget(url, drains=True)
        await asyncio.sleep(0)
        async with pool.server() as one, pool.server() as other:
            assert (one, other) == ("b", "b") and pool.capacity == 2


@pytest.mark.asyncio
async def test_a_request_that_is_cancelled_leaves_its_place_to_the_next():
    pool = ServerPool(limit=1)
    await pool.set_servers(["a"])
    async with pool.server():
        first, second = (asyncio.create_task(pool.server().__aenter__()) for _ in range(2))
        await asyncio.sleep(0)
    first.cancel()  # it has been given the place, and has not run since
    assert await second == "a"


@pytest.mark.asyncio
async def test_a_request_avoids_a_server_as_long_as_there_is_another():
    pool = ServerPool(limit=1)
    await pool.set_servers(["a", "b"])
    with pytest.raises(ServerUnavailableError, match="left_out"):
        async with pool.server(avoid="a") as url:
            assert url == "b"
            waiting = asyncio.create_task(pool.server(avoid="a").__aenter__())
            await turns()
            assert not waiting.done()
            pool.leave_out("b")
            await asyncio.Event().wait()
    assert await waiting == "a"


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the callbacks that it is asked to make: a wakeup of a task is one."""

    callbacks = 0

    def call_soon(self, *arguments, **options):
        self.callbacks += 1
        return super().call_soon(*arguments, **options)


def wakeups_of(failing: int, freed: int = 100) -> float:
    """Callbacks for each place that is freed, where 128 requests want the 16 servers' 128 places."""

    async def scenario():
        pool, held = ServerPool(limit=8), []
        await pool.set_servers([str(server) for server in range(16)])

        async def client():
            while True:
                with contextlib.suppress(ServerUnavailableError):
                    async with pool.server() as url:
                        if int(url) < failing:
                            raise ServerUnavailableError("connection")
                        held.append(asyncio.get_running_loop().create_future())
                        await held[-1]

        clients = [asyncio.create_task(client()) for _ in range(128)]
        await turns()
        assert len(held) == 8 * (16 - failing)
        loop = asyncio.get_running_loop()
        before = loop.callbacks
        for _ in range(freed):
            held.pop(0).set_result(None)
            await turns()
        counted = loop.callbacks - before
        for task in clients:
            task.cancel()
        return counted / freed - TURNS

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(scenario())


def test_a_freed_place_wakes_one_request_however_many_wait():
    assert wakeups_of(failing=0) == 1  # its holder, which takes it again
    assert wakeups_of(failing=4) == 2  # its holder, and one of the 32 that wait


async def wait_until(condition) -> None:
    while not condition():
        await asyncio.sleep(0)
