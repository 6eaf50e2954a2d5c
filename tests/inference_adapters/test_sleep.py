"""A server that sleeps too long, cannot stop in time, or fails while it falls asleep or wakes."""

import asyncio
import threading
from contextlib import contextmanager

import pytest

from contracts.conformance.tiny_model import make_hybrid_model, make_tiny_model
from contracts.errors import ContractError
from contracts.inference import SamplingParameters, SleepRequest, WakeRequest, WeightUpdateStatus
from contracts.limits import Limits
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.transformers.engine import TransformersEngine
from inference_adapters.update_record import UpdateRecord
from inference_adapters.weight_updates import WeightUpdates
from tests.inference_adapters.failing_engine import POISON
from tests.inference_adapters.servers import serving, wait_ready
from tests.inference_adapters.trainer_peer import joined_trainer, weights
from tests.limits import HANG_S

HOLD_TIMEOUT_S = 0.2  # it always passes: the server sleeps on
LONG = {"prompt": "hello", "max_tokens": 4000}
SLEEP = {"timeout_s": HANG_S}
OF_RUN = {"run": "r", "epoch": 1}


@contextmanager
def failing(hold_timeout_s: float):
    with serving(
        "tests.inference_adapters.failing_engine", "--hold-timeout-s", str(hold_timeout_s)
    ) as server:
        wait_ready(server.url)
        yield server.url


async def post(trainer, path, **fields):
    return await trainer.post(path, {"run": trainer.run, "epoch": trainer.epoch} | fields)


@pytest.mark.asyncio
async def test_requests_end_when_the_server_does_not_wake_in_time():
    with failing(HOLD_TIMEOUT_S) as url:
        async with joined_trainer(url) as trainer:
            body = {"model": "scripted"} | LONG
            held = asyncio.create_task(trainer.post("/v1/completions", body))
            await trainer.wait_running(1)
            status, answer = await post(trainer, "/sleep", **SLEEP)
            assert (status, answer["held"], answer["hold_timeout_s"]) == (200, 1, HOLD_TIMEOUT_S)
            queued = asyncio.create_task(trainer.post("/v1/completions", body))
            for status, refusal in (await held, await queued, await trainer.post("/v1/completions", body)):
                assert (status, refusal["error"]["code"]) == (503, "asleep")
            status, health = await trainer.get("/health")
            assert (status, health["status"]) == (503, "asleep") and "too long" in health["reason"]
            assert (await post(trainer, "/wake"))[0] == 200
            assert (await trainer.complete())["choices"] and (await trainer.get("/health"))[0] == 200


@pytest.mark.asyncio
async def test_weights_that_are_lost_while_the_server_wakes_come_back_by_the_next_update():
    with failing(hold_timeout_s=HANG_S) as url:
        async with joined_trainer(url) as trainer:
            held = asyncio.create_task(trainer.complete(max_tokens=300))
            await trainer.wait_running(1)
            await post(trainer, "/sleep", keep="nothing", **SLEEP)
            status = await trainer.publish(POISON, weights(2))
            assert (status["state"], status["touched"]) == ("failed", True)
            status, refusal = await trainer.post("/v1/completions", {"model": "scripted", "prompt": "a"})
            assert (status, refusal["error"]["code"]) == (503, "unhealthy")
            for path, fields in (("/sleep", SLEEP | {"keep": "nothing"}), ("/wake", {})):
                status, refusal = await post(trainer, path, **fields)
                assert (status, refusal["error"]["code"]) == (503, "unhealthy")
            await trainer.join()
            assert (await trainer.publish(POISON + 1, weights(2)))["state"] == "live"
            spans = (await held)["choices"][0]["weight_versions"]
            assert [span["version"] for span in spans] == [1, POISON + 1]


class Blocked(ScriptedEngine):
    """Its forward pass ends when `ended` is set."""

    def __init__(self):
        super().__init__()
        self.ended = threading.Event()

    @contextmanager
    def pause_generation(self):
        self.ended.wait()
        with super().pause_generation():
            yield


@pytest.mark.asyncio
async def test_no_more_requests_wait_than_leave_connections_for_the_trainer():
    updates = await started(engine := ScriptedEngine(), Limits(max_connections=2))
    await updates.sleeping.sleep(SleepRequest(**OF_RUN, timeout_s=HANG_S))
    queued = asyncio.create_task(updates.until_ready())
    await turns()
    with pytest.raises(ContractError, match="too many requests wait"):
        await updates.until_ready()
    await updates.sleeping.wake(WakeRequest(**OF_RUN))
    await queued
    await updates.until_ready()
    assert await sampled(engine)


class Unfreeable(ScriptedEngine):
    def release(self, keep):
        raise MemoryError("no memory to free memory")


async def started(engine: ScriptedEngine, limits: Limits | None = None) -> WeightUpdates:
    """Returns the control side of a server that has joined a group of epoch 1."""
    updates = WeightUpdates(engine, limits=limits)
    await updates.start(0)
    updates.membership.run, updates.membership._epoch = OF_RUN.values()
    return updates


async def sampled(engine: ScriptedEngine) -> list[int]:
    return [i async for delta in engine.generate([1], SamplingParameters(3)) for i in delta.token_ids]


@pytest.mark.asyncio
async def test_a_server_that_cannot_stop_in_time_stays_awake():
    updates = await started(engine := Blocked())
    with pytest.raises(ContractError) as refused:
        await updates.sleeping.sleep(SleepRequest(**OF_RUN, timeout_s=0.01))
    assert refused.value.code.code == "sleep_timeout"
    engine.ended.set()
    await engine._in_model_thread(lambda: None)  # the pause has been entered and left
    assert await sampled(engine) and updates.health().status == "ready"
    assert (await updates.sleeping.sleep(SleepRequest(**OF_RUN, timeout_s=HANG_S))).held == 0
    await engine.wake()


@pytest.mark.asyncio
async def test_a_server_that_cannot_free_memory_has_lost_its_weights():
    updates = await started(engine := Unfreeable())
    with pytest.raises(MemoryError):
        await updates.sleeping.sleep(SleepRequest(**OF_RUN, timeout_s=HANG_S))
    health = updates.health()
    assert health.status == "unhealthy" and "no memory to free memory" in health.reason
    await engine.wake()


@pytest.mark.asyncio
async def test_a_server_that_cannot_allocate_sleeps_on(monkeypatch):
    updates = await started(engine := ScriptedEngine())
    await updates.sleeping.sleep(SleepRequest(**OF_RUN, timeout_s=HANG_S))
    with monkeypatch.context() as patch:
        patch.setattr(engine, "restore", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await updates.sleeping.wake(WakeRequest(**OF_RUN))
    assert updates.health().status == "asleep"
    assert (await updates.sleeping.wake(WakeRequest(**OF_RUN))).version == 0
    assert await sampled(engine)


@pytest.mark.asyncio
@pytest.mark.parametrize("begins", ["before", "after"])
@pytest.mark.parametrize(("keep", "waits"), [("weights", True), ("nothing", False)])
async def test_a_version_that_a_channel_pulls_waits_where_weights_were_kept(keep, waits, begins):
    updates = await started(engine := Blocked())
    asked = asyncio.create_task(updates.sleeping.sleep(SleepRequest(**OF_RUN, keep=keep, timeout_s=HANG_S)))
    await turns()
    if begins == "after":
        engine.ended.set()
        await asked
    pulled = UpdateRecord(WeightUpdateStatus(**OF_RUN, version=1), HANG_S, is_unrequested=True)
    applying = asyncio.create_task(updates.ledger.acquire_exclusive(pulled))
    await turns()
    assert not applying.done() or begins == "after"
    engine.ended.set()
    await asked
    await turns()
    assert applying.done() is not waits
    applying.cancel()
    await engine.wake()


async def turns() -> None:
    for _ in range(5):  # of the event loop
        await asyncio.sleep(0)


@pytest.mark.asyncio
@pytest.mark.parametrize("make_model", [make_tiny_model, make_hybrid_model])
async def test_no_cache_is_lost_by_sleeping_and_a_server_ends_in_its_sleep(make_model, tmp_path):
    engine = TransformersEngine(make_model(tmp_path), "float32", "cpu", max_batch_tokens=64, num_blocks=8)
    await engine.start(0)
    for _ in range(3):
        held = engine.generate([5] * 100, SamplingParameters(150))  # fills the 8 blocks
        deltas = [await anext(held)]
        await engine.sleep(SleepRequest(**OF_RUN, timeout_s=HANG_S))
        await engine.wake()
        deltas += [delta async for delta in held]
        assert deltas[-1].finish_reason
    await engine.sleep(SleepRequest(**OF_RUN, keep="nothing", timeout_s=HANG_S))
    await engine.close()
