"""Weight updates over HTTP and a real weight group: content, refusals, retries, ends of every kind."""

import asyncio
import time

import pytest
import torch

from contracts.weights import WeightStore
from tests.inference_adapters.reference import continuation_logprobs
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import (
    TIMEOUT_S,
    joined_trainer,
    logprobs,
    packed,
    trainer_of,
    weights,
)

pytestmark = pytest.mark.asyncio


def expect(answer: tuple[int, dict], status: int, code: str) -> None:
    assert (answer[0], answer[1].get("error", {}).get("code")) == (status, code), answer


# --- content -----------------------------------------------------------------------------------


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
        assert contract["weights"] == {"version": 3, "state": "live"}


async def test_the_live_version_may_be_sent_again(server: Server):
    async with joined_trainer(server.url) as trainer:
        await trainer.join()
        assert (await trainer.publish(1, weights(1)))["state"] == "live"


# --- refusals ----------------------------------------------------------------------------------


def without(parameters: list[dict], name: str) -> list[dict]:
    return [p for p in parameters if p["name"] != name]


def changed(parameters: list[dict], which: str, **changes) -> list[dict]:
    return [p | changes if p["name"] == which else p for p in parameters]


EMBED = "model.embed_tokens.weight"
BAD_UPDATES = {
    "other run": (lambda r: r | {"run": "another"}, 409, "other_run", "another"),
    "older epoch": (lambda r: r | {"epoch": 0}, 409, "stale_epoch", "epoch 0"),
    "newer epoch": (lambda r: r | {"epoch": 9}, 409, "stale_epoch", "epoch 9"),
    "older version": (lambda r: r | {"version": 0}, 409, "stale_version", "version 0"),
    "unknown": (
        lambda r: r | {"parameters": changed(r["parameters"], EMBED, name="model.nothing")},
        422, "unknown_parameter", "model.nothing",
    ),
    "missing": (
        lambda r: r | {"parameters": without(r["parameters"], "model.norm.weight")},
        422, "missing_parameter", "model.norm.weight",
    ),
    "transposed": (
        lambda r: r | {"parameters": changed(r["parameters"], EMBED, shape=[8, 97])},
        422, "shape_mismatch", EMBED,
    ),
    "float64": (
        lambda r: r | {"parameters": changed(r["parameters"], EMBED, dtype="float64")},
        422, "dtype_mismatch", EMBED,
    ),
    "no dtype": (
        lambda r: r | {"parameters": changed(r["parameters"], EMBED, dtype="cucumber")},
        422, "dtype_mismatch", EMBED,
    ),
    "twice": (lambda r: r | {"parameters": r["parameters"] * 2}, 422, "invalid_request", "more than once"),
    "tied sent": (
        lambda r: r | {"parameters": changed(r["parameters"], EMBED, name="lm_head.weight")},
        422, "unknown_parameter", "lm_head.weight",
    ),
    "tie unsaid": (lambda r: r | {"tied": {}}, 422, "missing_parameter", "lm_head.weight"),
    "tied elsewhere": (
        lambda r: r | {"tied": r["tied"] | {"model.extra": EMBED}}, 422, "unknown_parameter", "model.extra",
    ),
    "kv cache": (lambda r: r | {"kv_cache": "burn"}, 422, "unsupported_kv_cache", "kv_cache"),
    "receive": (lambda r: r | {"receive": "twice"}, 422, "unsupported_receive", "receive"),
    "no silence": (lambda r: r | {"timeout_s": 0}, 422, "invalid_request", "timeout_s"),
    "a field more": (lambda r: r | {"compress": True}, 422, "invalid_request", "compress"),
}  # fmt: skip


async def test_bad_updates_are_refused_and_change_nothing(server: Server):
    async with joined_trainer(server.url) as trainer:
        before = await trainer.greedy()
        for what, (spoil, status, code, named) in BAD_UPDATES.items():
            answer = await trainer.post(
                "/request_weight_update", spoil(trainer.update_request(2, weights(2)))
            )
            assert (answer[0], answer[1]["error"]["code"]) == (status, code), (what, answer)
            assert named in answer[1]["error"]["message"], (what, answer)
        assert await trainer.greedy() == before
        expect(await trainer.get("/weight_update/2"), 404, "not_found")
        assert (await trainer.publish(2, weights(2)))["state"] == "live"  # the group is whole


BAD_JOINS = {
    "other run": ({"run": "another", "takeover": False}, 409, "other_run"),
    "same epoch": ({"epoch": 1}, 409, "stale_epoch"),
    "older epoch": ({"epoch": 0}, 409, "stale_epoch"),
    "no nccl here": ({"backend": "nccl"}, 422, "unsupported_backend"),
    "no such backend": ({"backend": "mpi"}, 422, "unsupported_backend"),
    "world too small": ({"rank_offset": 2}, 422, "invalid_request"),
    "rank 0 is the trainer's": ({"rank_offset": 0}, 422, "invalid_request"),
    "nobody there": ({"timeout_s": 0.5}, 504, "rendezvous_timeout"),
}


async def test_bad_joins_are_refused_and_the_group_stays(server: Server):
    async with joined_trainer(server.url) as trainer:
        for what, (changes, status, code) in BAD_JOINS.items():
            request = trainer.join_request(port=1) | {"epoch": 2} | changes
            answer = await trainer.post("/init_process_group", request)
            assert (answer[0], answer[1]["error"]["code"]) == (status, code), (what, answer)
        assert (await trainer.publish(2, weights(2)))["state"] == "live"


async def test_a_rendezvous_without_its_peers_ends_at_its_timeout(server: Server):
    async with joined_trainer(server.url) as trainer:
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)  # rank 0 never comes
        started = time.monotonic()
        answer = await trainer.post(
            "/init_process_group", trainer.join_request(store.port, epoch=2, timeout_s=1)
        )
        expect(answer, 504, "rendezvous_timeout")
        assert 0.9 < time.monotonic() - started < 3
        assert (await trainer.get("/health"))[0] == 200
        assert (await trainer.join())[0] == 200  # the epoch was not used up


async def test_no_group_and_joining(server: Server):
    async with trainer_of(server.url) as trainer:
        store = WeightStore("127.0.0.1", 0, TIMEOUT_S)
        request = trainer.join_request(store.port, epoch=1, timeout_s=2)
        joining = asyncio.create_task(trainer.post("/init_process_group", request))
        trainer.epoch = 1
        while (answer := await trainer.request_update(1, weights(1)))[1]["error"]["code"] != "joining":
            assert not joining.done(), answer
        # A newer epoch takes the place of one that is still forming.
        assert (await trainer.join())[0] == 200
        expect(await joining, 409, "stale_epoch")
        assert (await trainer.publish(1, weights(1)))["state"] == "live"
        trainer.leave()
        await trainer.request_update(2, weights(2))
        assert (await trainer.ended(2))["state"] == "failed"
        expect(await trainer.request_update(3, weights(2)), 409, "no_group")


# --- retries -----------------------------------------------------------------------------------


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


# --- ends --------------------------------------------------------------------------------------


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
        assert contract["group"] is None and contract["weights"] == {"version": 1, "state": "live"}
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
        # The thread that still waits for the first bucket does not stand in the way of a fresh group.
        stuck, trainer.group = trainer.group, None
        await trainer.join()
        assert (await trainer.publish(3, weights(2)))["state"] == "live"
        assert time.monotonic() - started < TIMEOUT_S / 2
        # Nor does it count, when the trainer sends after all.
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
        assert contract["weights"] == {"version": 1, "state": "receiving"}
        polling = asyncio.create_task(trainer.get(f"/weight_update/2?wait_s={TIMEOUT_S}"))
        await trainer.send(weights(2))
        assert (await polling)[1]["state"] == "live"


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
