"""Weight updates over HTTP and a real weight group: content, retries and probes."""

import asyncio

import pytest
import torch

from contracts.weights import WeightStore
from tests.inference_adapters.reference import continuation_logprobs
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import (
    TIMEOUT_S,
    expect,
    joined_trainer,
    logprobs,
    trainer_of,
    weights,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("receive", ["paused", "staged"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
async def test_the_weights_that_were_sent_are_served(server: Server, receive, dtype, bucket_bytes):
    async with trainer_of(server.url) as trainer:
        await trainer.join()
        names = sorted(weights(7), reverse=True)  # not the model's order
        sent = {name: weights(7)[name].to(dtype) for name in names}
        status = await trainer.publish(3, sent, receive=receive, bucket_bytes=bucket_bytes)
        assert status["state"] == "live" and status["version"] == 3
        assert status["bytes"] == sum(t.nbytes for t in sent.values())
        assert 0 < status["paused_s"] < TIMEOUT_S and 0 < status["transfer_s"] < TIMEOUT_S
        answer = await trainer.complete(max_tokens=20)
        choice = answer["choices"][0]
        expected = continuation_logprobs(sent, answer["prompt_token_ids"], choice["token_ids"])
        assert logprobs(choice) == pytest.approx(expected, abs=1e-5)
        assert [span["version"] for span in choice["weight_versions"]] == [3]
        _, contract = await trainer.get("/contract")
        assert contract["run"] == trainer.run
        assert contract["group"] == {"epoch": 1, "rank_offset": 1, "world_size": 2}
        assert contract["weights"] == {"version": 3, "state": "live", "run": trainer.run, "digest": None}


async def test_the_live_version_may_be_sent_again(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.join()
        assert (await trainer.publish(1, weights(1)))["state"] == "live"


async def test_retries_repeat_the_first_answer(server: Server):
    async with trainer_of(server.url) as trainer:
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)
        trainer.epoch = 1
        join = trainer.join_request(store.port)
        first = asyncio.create_task(trainer.post("/init_process_group", join))
        second = asyncio.create_task(trainer.post("/init_process_group", join))
        trainer.group = await asyncio.to_thread(store.group, join["group_name"], 2, "gloo", TIMEOUT_S)
        assert (
            await first
            == await second
            == await trainer.post("/init_process_group", join)
            == (200, {"ranks": [1]})
        )

        accepted = await trainer.request_update(1, weights(1))
        assert accepted == (202, {"state": "receiving"})
        assert await trainer.request_update(1, weights(1)) == accepted  # on its way
        expect(await trainer.request_update(1, weights(1), kv_cache="recompute"), 409, "update_in_progress")
        await trainer.send(weights(1))
        live = await trainer.ended(1)
        assert await trainer.request_update(1, weights(1)) == accepted  # long live
        assert await trainer.ended(1) == live
        assert (await trainer.publish(2, weights(2)))["state"] == "live"  # it was not received twice
        assert await trainer.request_update(1, weights(1)) == accepted


async def test_a_probe_is_received_as_part_of_joining(server: Server):
    async with trainer_of(server.url) as trainer:
        assert (await trainer.join(probe=True))[0] == 200
        assert (await trainer.publish(1, weights(7)))["state"] == "live"


async def test_a_probe_that_does_not_come_is_a_rendezvous_timeout(server: Server):
    async with trainer_of(server.url) as trainer:
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)
        request = trainer.join_request(store.port, epoch=1, probe=True, timeout_s=1)
        silent = asyncio.to_thread(store.group, request["group_name"], 2, "gloo", TIMEOUT_S)
        answer, _ = await asyncio.gather(trainer.post("/init_process_group", request), silent)
        expect(answer, 504, "rendezvous_timeout")
        assert (await trainer.join())[0] == 200
