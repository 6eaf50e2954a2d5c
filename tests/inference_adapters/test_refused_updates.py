"""Updates and joins that are refused, over HTTP and a real weight group."""

import asyncio
import time

import pytest

from contracts.weights import WeightStore
from tests.inference_adapters.servers import Server
from tests.inference_adapters.trainer_peer import (
    TIMEOUT_S,
    expect,
    joined_trainer,
    trainer_of,
    weights,
)

pytestmark = pytest.mark.asyncio


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
