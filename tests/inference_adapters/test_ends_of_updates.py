"""How updates and joins end, over HTTP and a real weight group: failures, calls to end, takeovers."""

import asyncio
import time
from contextlib import suppress

import pytest

from contracts.weights import PeerLostError, WeightStore
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import (
    TIMEOUT_S,
    expect,
    joined_trainer,
    packed,
    state_of,
    trainer_of,
    weights,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("receive", ["paused", "staged"])
@pytest.mark.parametrize("sent_buckets", [0, 1])
async def test_the_sender_dies(server: Server, receive, sent_buckets):
    async with joined_trainer(server.url) as trainer:
        before = await trainer.greedy()
        in_flight = asyncio.create_task(trainer.complete(max_tokens=60, temperature=0))
        await trainer.wait_running(1)
        await trainer.request_update(2, weights(2), receive=receive)
        if sent_buckets:
            await trainer.send_first_bucket(weights(2))
        trainer.leave()
        failed = await trainer.ended(2, within_s=3)
        assert (failed["state"], failed["touched"]) == ("failed", False) and failed["error"]
        _, contract = await trainer.get("/contract")
        assert contract["group"] is None and state_of(contract) == (1, "live")
        assert (await trainer.get("/health"))[0] == 200
        assert await trainer.greedy() == before
        choice = (await in_flight)["choices"][0]
        assert choice["weight_versions"] == [{"version": 1, "start": 0, "end": 60}]
        await trainer.join()
        assert (await trainer.publish(2, weights(2)))["state"] == "live"


async def test_the_sender_stalls(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2), timeout_s=1)
        await trainer.send_first_bucket(weights(2))
        started = time.monotonic()
        failed = await trainer.ended(2)
        assert (failed["state"], failed["touched"]) == ("failed", False)
        assert 0.5 < time.monotonic() - started < 3
        assert failed["bytes"] == packed(weights(2))[0].nbytes
        await trainer.join()
        assert (await trainer.publish(2, weights(2)))["state"] == "live"


@pytest.mark.parametrize("receive", ["paused", "staged"])
async def test_an_update_is_called_off(server: Server, receive):
    async with joined_trainer(server.url) as trainer:
        name = {"run": trainer.run, "epoch": 1, "version": 2}
        expect(await trainer.post("/abort_weight_update", name), 404, "not_found")
        expect(await trainer.post("/abort_weight_update", name | {"run": "another"}), 409, "other_run")
        await trainer.request_update(2, weights(2), receive=receive)
        polling = asyncio.create_task(trainer.ended(2))
        started = time.monotonic()
        status, aborted = await trainer.post("/abort_weight_update", name)
        assert status == 200 and (aborted["state"], aborted["touched"]) == ("failed", False)
        assert await trainer.post("/abort_weight_update", name) == (200, aborted)
        assert await polling == aborted
        # The group is left at once, and does not stand in the way of a fresh one.
        stuck, trainer.group = trainer.group, None
        await trainer.join()
        assert (await trainer.publish(3, weights(2)))["state"] == "live"
        assert time.monotonic() - started < TIMEOUT_S / 2
        # Nor does it count, when the trainer sends after all, whether or not it is told that nobody is there.
        with suppress(PeerLostError):
            await asyncio.to_thread(stuck.broadcast, packed(weights(2))[0], TIMEOUT_S)
        await asyncio.sleep(0.1)
        assert await trainer.ended(2) == aborted
        stuck.close()


async def test_a_live_update_cannot_be_called_off(server: Server):
    async with joined_trainer(server.url) as trainer:
        name = {"run": trainer.run, "epoch": 1, "version": 1}
        status, body = await trainer.post("/abort_weight_update", name)
        assert status == 200 and body["state"] == "live"
        assert (await trainer.publish(2, weights(2)))["state"] == "live"


async def test_a_join_waits_for_an_update_as_long_as_that_may_be_silent(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2), timeout_s=2)
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)
        request = trainer.join_request(store.port, epoch=2)
        joining = [asyncio.create_task(trainer.post("/init_process_group", request)) for _ in range(2)]
        group = await asyncio.to_thread(store.group, request["group_name"], 2, "gloo", TIMEOUT_S)
        for answer in await asyncio.gather(*joining):  # the second is an HTTP retry
            assert answer == (200, {"ranks": [1]})
        assert (await trainer.ended(2))["state"] == "failed"
        group.close()


async def test_a_join_is_refused_while_a_slow_update_goes_on(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2), timeout_s=2)
        joining = asyncio.create_task(trainer.post("/init_process_group", trainer.join_request(1, epoch=2)))
        for bucket in packed(weights(2)):  # never silent for long, but slow in all
            if not joining.done():
                await asyncio.wait([joining], timeout=1.3)
            await trainer.broadcast(bucket)
        expect(await joining, 409, "update_in_progress")
        assert (await trainer.ended(2))["state"] == "live"


async def test_a_takeover_goes_back_in_version_and_aborts(server: Server):
    async with joined_trainer(server.url) as old:
        await old.publish(5, weights(5))
        in_flight = asyncio.create_task(old.complete(max_tokens=2000, temperature=0))
        await old.wait_running(1)
        await old.request_update(6, weights(6))  # nothing of it comes
        async with trainer_of(server.url) as new:
            expect(
                await new.post("/init_process_group", new.join_request(1, epoch=1, takeover=False)),
                409, "other_run",
            )  # fmt: skip
            assert not in_flight.done()
            assert (await new.join())[0] == 200
            choice = (await asyncio.wait_for(in_flight, 1))["choices"][0]
            assert choice["finish_reason"] == "abort"
            assert choice["weight_versions"] == [{"version": 5, "start": 0, "end": len(choice["token_ids"])}]
            expect(await old.request_update(7, weights(6)), 409, "other_run")
            assert (await new.publish(2, weights(2)))["state"] == "live"
            expect(await new.request_update(1, weights(1)), 409, "stale_version")


async def test_the_state_says_receiving_until_it_is_live(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.request_update(2, weights(2))
        status, body = await trainer.get("/weight_update/2?wait_s=0.1")
        assert status == 200 and body["state"] == "receiving"
        _, contract = await trainer.get("/contract")
        assert state_of(contract) == (1, "receiving")
        polling = asyncio.create_task(trainer.get(f"/weight_update/2?wait_s={TIMEOUT_S}"))
        await trainer.send(weights(2))
        assert (await polling)[1]["state"] == "live"
