"""A server whose weights were lost half-way, and one that cannot load."""

import asyncio
import subprocess
import sys

import pytest

from tests.inference_adapters.reference import continuation_logprobs
from tests.inference_adapters.servers import health, serving, wait_ready
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, packed, state_of, weights

MODULE = "tests.inference_adapters.failing_engine"
POISON = 666
HOLD_TIMEOUT_S = 1.5


@pytest.fixture(scope="module")
def url():
    with serving(MODULE, "--hold-timeout-s", str(HOLD_TIMEOUT_S), "--load-s", "0.5") as server:
        assert health(server.url) == 503  # it answers while it is loading
        wait_ready(server.url)
        yield server.url


@pytest.mark.asyncio
async def test_an_engines_own_error_is_answered_as_one(url):
    async with joined_trainer(url) as trainer:
        body = {"model": "scripted", "prompt": [13], "max_tokens": 9}
        status, answer = await trainer.post("/v1/completions", body)
        assert status == 500 and answer["error"] == {
            "code": "engine_failed",
            "message": "ArithmeticError('cursed')",
            "type": "server_error",
            "param": None,
        }
        async with trainer.http.post(f"{url}/v1/completions", json=body | {"stream": True}) as stream:
            assert "engine_failed" in (await stream.text()).splitlines()[-2]
        assert (await trainer.complete(max_tokens=3))["choices"]


async def lose_weights(trainer, requests: list[asyncio.Task]) -> None:
    await trainer.wait_running(len(requests))
    status = await trainer.publish(POISON, weights(2))
    assert (status["state"], status["touched"]) == ("failed", True) and "poisoned" in status["error"]
    with pytest.raises(RuntimeError, match="[Cc]onnection"):  # the server leaves a group that failed
        for _ in range(100):
            await trainer.broadcast(packed(weights(2))[1])
    code, body = await trainer.get("/health")
    assert code == 503 and body["status"] == "unhealthy" and "poisoned" in body["reason"]
    _, contract = await trainer.get("/contract")
    assert state_of(contract) == (1, "lost") and contract["group"] is None
    code, body = await trainer.post("/v1/completions", {"model": "scripted", "prompt": "hi"})
    assert (code, body["error"]["code"]) == (503, "unhealthy")


@pytest.mark.asyncio
async def test_requests_are_held_for_the_next_complete_update(url: str):
    async with joined_trainer(url) as trainer:
        held = asyncio.create_task(trainer.complete(max_tokens=60, temperature=0))
        await lose_weights(trainer, [held])
        await trainer.join()
        await trainer.request_update(POISON + 1, weights(3))
        trainer.leave()  # an update that fails on the way restores nothing
        assert (await trainer.ended(POISON + 1))["touched"] is False
        assert health(url) == 503 and not held.done()
        await trainer.join()
        status = await trainer.publish(POISON + 1, weights(2), kv_cache="recompute")
        assert status["state"] == "live" and health(url) == 200
        answer = await held
        choice = answer["choices"][0]
        assert [span["version"] for span in choice["weight_versions"]] == [1, POISON + 1]
        start, ids = choice["weight_versions"][1]["start"], choice["token_ids"]
        before = continuation_logprobs(weights(1), answer["prompt_token_ids"], ids[:start])
        after = continuation_logprobs(weights(2), answer["prompt_token_ids"] + ids[:start], ids[start:])
        assert logprobs(choice) == pytest.approx(before + after, abs=1e-5)  # nothing by half new weights


@pytest.mark.asyncio
async def test_held_requests_end_when_no_update_comes(url: str):
    async with joined_trainer(url) as trainer:
        body = {"model": "scripted", "prompt": "hello", "max_tokens": 1000}
        plain = asyncio.create_task(trainer.post("/v1/completions", body))
        stream = await trainer.http.post(f"{url}/v1/completions", json=body | {"stream": True})
        await lose_weights(trainer, [plain, stream])
        status, answer = await asyncio.wait_for(plain, 2 * HOLD_TIMEOUT_S)
        assert (status, answer["error"]["code"]) == (503, "weights_lost")
        assert b"weights_lost" in (await stream.read()).splitlines()[-2]
        await trainer.wait_running(0)
        await trainer.join()
        assert (await trainer.publish(POISON + 1, weights(2)))["state"] == "live"
        await trainer.complete()


def test_a_model_that_does_not_load_ends_the_server():
    command = [sys.executable, "-m", MODULE, "--port", "0", "--load-fails"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1 and "no such model" in ended.stderr
