"""A server whose weights were lost half-way, and one that cannot load."""

import asyncio

import pytest

from contracts.conformance.inference.buckets import packed
from contracts.inference import ScoreRequest
from inference_adapters.scripted import ScriptedEngine
from tests.forked import Forked
from tests.inference_adapters.failing_engine import HELD, POISON
from tests.inference_adapters.servers import health, serving, wait_ready
from tests.inference_adapters.trainer_peer import joined_trainer, logprobs, weights
from tests.limits import HANG_S

MODULE = "tests.inference_adapters.failing_engine"
HOLD_TIMEOUT_S = 0.2  # no complete update comes, so it always passes


@pytest.fixture
def url():
    with serving(MODULE, "--hold-timeout-s", str(HANG_S)) as server:
        wait_ready(server.url)
        yield server.url


@pytest.fixture
def impatient():
    """A server that holds requests for a moment, and answers while it is loading."""
    with serving(MODULE, "--hold-timeout-s", str(HOLD_TIMEOUT_S), "--load-s", "0.5") as server:
        assert health(server.url) in (200, 503)
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
            await trainer.send(packed(weights(2), 512)[1:2])
    code, body = await trainer.get("/health")
    assert code == 503 and body["status"] == "unhealthy" and "poisoned" in body["reason"]
    _, contract = await trainer.get("/contract")
    assert (contract["weights"]["version"], contract["weights"]["state"]) == (1, "lost")
    assert contract["group"] is None
    code, body = await trainer.post("/v1/completions", {"model": "scripted", "prompt": "hi"})
    assert (code, body["error"]["code"]) == (503, "unhealthy")


@pytest.mark.asyncio
async def test_requests_are_held_for_the_next_complete_update(url: str):
    async with joined_trainer(url) as trainer:
        held = asyncio.create_task(trainer.complete(HELD, max_tokens=60, temperature=0))
        await lose_weights(trainer, [held])
        await trainer.join()
        await trainer.request_update(trainer.update_request(POISON + 1, weights(3)))
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
        prompt = answer["prompt_token_ids"]
        old, new = [await scored(seed, prompt + ids) for seed in (1, 2)]
        expected = (old[: len(prompt) - 1 + start] + new[len(prompt) - 1 + start :])[len(prompt) - 1 :]
        assert logprobs(choice) == pytest.approx(expected, abs=1e-5)  # nothing by half new weights


async def scored(seed: int, token_ids: list[int]) -> list[float]:
    """Returns the log-probability of each token but the first, by the weights of a seed."""
    (found,) = (await ScriptedEngine(seed=seed).score(ScoreRequest(sequences=[token_ids]))).logprobs
    return found


@pytest.mark.asyncio
async def test_held_requests_end_when_no_update_comes(impatient: str):
    async with joined_trainer(impatient) as trainer:
        body = {"model": "scripted", "prompt": HELD, "max_tokens": 1000}
        plain = asyncio.create_task(trainer.post("/v1/completions", body))
        stream = await trainer.http.post(f"{impatient}/v1/completions", json=body | {"stream": True})
        await lose_weights(trainer, [plain, stream])
        status, answer = await plain
        assert (status, answer["error"]["code"]) == (503, "weights_lost")
        assert b"weights_lost" in (await stream.read()).splitlines()[-2]
        await trainer.wait_running(0)
        await trainer.join()
        assert (await trainer.publish(POISON + 1, weights(2)))["state"] == "live"
        await trainer.complete()


def test_a_model_that_does_not_load_ends_the_server():
    ended = Forked("-m", MODULE, "--port", "0", "--load-fails")
    _, err = ended.communicate()
    assert ended.returncode == 1 and "no such model" in err
