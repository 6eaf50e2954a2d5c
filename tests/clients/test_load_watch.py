"""A server gets as many requests as its `/metrics` show to be worth it, whatever else it answers there."""

import asyncio
import itertools
from collections.abc import Callable

import aiohttp
import pytest

from pipelinerl.clients.load_watch import EVERY_S, LoadWatch
from pipelinerl.clients.server_pool import ServerPool
from tests.clients.fake_servers import FakeServer, served
from tests.virtual_time import in_virtual_time, pass_time

AT_FIRST = 4
TEXT = """# TYPE contract_requests gauge
contract_requests{{state="running"}} {running}
contract_requests{{state="waiting"}} {waiting}
# TYPE contract_sampled_tokens_total counter
contract_sampled_tokens_total {sampled}
# TYPE contract_weight_update_paused_seconds_total counter
contract_weight_update_paused_seconds_total 0.5
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model="m"}} 7
"""


async def hold(pool: ServerPool) -> None:
    async with pool.server():
        await asyncio.Event().wait()


def capacity_after(
    server: FakeServer, looks: int, requests: int, on_more: Callable[[int], object] = lambda capacity: None
) -> int:
    """Returns the capacity of a pool with so many requests, after the server was looked at so often."""

    async def scenario() -> int:
        pool = ServerPool(AT_FIRST)
        async with served(server), aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            await pool.set_servers([server.url])
            server.pool = pool
            holding = [tasks.create_task(hold(pool)) for _ in range(requests)]
            watch = LoadWatch(pool, session, AT_FIRST, lambda: on_more(pool.capacity))
            for _ in range(looks):
                await watch.poll()
                pass_time(EVERY_S)
            for task in holding:
                task.cancel()
        return pool.capacity

    return in_virtual_time(scenario())


class Measured(FakeServer):
    """A server whose metrics are `text(look)`."""

    def __init__(self, text):
        super().__init__()
        self.looks = 0
        self.pool: ServerPool | None = None
        self.text = text
        self.metrics = self.look

    def look(self) -> str:
        self.looks += 1
        return self.text(self.looks)


def test_a_server_whose_speed_grows_with_its_requests_gets_more():
    def text(look: int) -> str:
        return TEXT.format(running=server.pool.in_flight, waiting=0, sampled=2**look)

    server = Measured(text)
    heard: list[int] = []
    assert capacity_after(server, looks=60, requests=100, on_more=heard.append) > 2 * AT_FIRST
    assert heard[0] == 1.5 * AT_FIRST and heard == sorted(set(heard))


def test_a_server_with_a_queue_gets_fewer():
    def text(look: int) -> str:
        return TEXT.format(running=2, waiting=server.pool.capacity - 2, sampled=look)

    server = Measured(text)
    assert capacity_after(server, looks=80, requests=100) <= 3


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_number_that_counts_nothing_is_left_out(value):
    def text(look: int) -> str:
        known = TEXT.format(running=server.pool.in_flight, waiting=0, sampled=2**look)
        return known if look % 3 else TEXT.format(running=server.pool.in_flight, waiting=0, sampled=value)

    server = Measured(text)
    assert capacity_after(server, looks=60, requests=100) > 2 * AT_FIRST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "contract_requests{",
        'contract_requests{a="b", ="c"} 1',
        "contract_requests NaN",
        "\x00",
        "a" * 2**23,
    ],
)
def test_a_server_that_does_not_say_how_busy_it_is_keeps_its_number(text):
    numbers = itertools.count()
    server = Measured(lambda look: text + str(next(numbers)))
    assert capacity_after(server, looks=5, requests=100) == AT_FIRST
