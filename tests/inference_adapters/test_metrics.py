"""`/metrics` of the scripted server, and of apps side by side."""

import asyncio
import json

import pytest

from inference_adapters.app import create_app
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.weight_updates import WeightUpdates
from tests.inference_adapters.held_engine import HELD
from tests.inference_adapters.metrics import scraped, value
from tests.inference_adapters.test_app import status_of
from tests.inference_adapters.trainer_peer import trainer_of

pytestmark = pytest.mark.asyncio

RUNNING = 3


async def grown_to(url: str, name: str, at_least: float, **labels: str) -> float:
    """Returns the value of a metric once it has reached `at_least`."""
    while (found := value(await asyncio.to_thread(scraped, url), name, **labels)) < at_least:
        await asyncio.sleep(0.01)
    return found


async def test_requests_are_counted_while_they_run_and_by_the_status_of_their_answer(server):
    def answered(samples: dict, status: str) -> float:
        return value(samples, "contract_http_requests_total", status=status)

    before = scraped(server.url)
    async with trainer_of(server.url) as trainer:
        whole = await trainer.complete(max_tokens=5, temperature=0)
        sampled = len(whole["choices"][0]["token_ids"])
        assert (await trainer.post("/v1/completions", {"model": "another", "prompt": "1"}))[0] == 404
        tokens = value(before, "contract_sampled_tokens_total") + sampled
        assert value(scraped(server.url), "contract_sampled_tokens_total") == tokens

        long = {"model": "scripted", "prompt": HELD, "max_tokens": 2000, "n": RUNNING}
        stream = await trainer.http.post(f"{server.url}/v1/completions", json=long | {"stream": True})
        waits = asyncio.create_task(trainer.post("/v1/completions", long | {"n": 1}))
        await grown_to(server.url, "contract_requests", RUNNING + 1, state="running")
        stream.close()
        waits.cancel()
    await grown_to(
        server.url, "contract_sampled_tokens_total", tokens + RUNNING
    )  # of what was cancelled, too
    await grown_to(
        server.url, "contract_http_requests_total", answered(before, "closed") + 1, status="closed"
    )
    await grown_to(server.url, "contract_http_requests_total", answered(before, "200") + 2, status="200")
    samples = scraped(server.url)
    assert answered(samples, "200") == answered(before, "200") + 2
    assert answered(samples, "404") == answered(before, "404") + 1


class WithItsOwn(ScriptedEngine):
    async def metrics(self) -> str:
        return "# TYPE own_steps_total counter\nown_steps_total 3\n"


async def test_two_apps_in_one_process_have_each_their_own_and_their_engines():
    texts = []
    for version, engine in ((3, WithItsOwn()), (4, ScriptedEngine())):
        app = create_app(WeightUpdates(engine), version=version)
        async with app.router.lifespan_context(app):
            while (answer := await status_of(app, "GET", "/metrics"))[0] == 503:  # it is being loaded
                assert json.loads(answer[1])["error"]["code"] == "unhealthy"
                await asyncio.sleep(0)
            texts.append(answer[1].decode())
    one, other = texts
    assert "\ncontract_weight_version 3.0\n" in one and one.endswith("\nown_steps_total 3\n")
    assert "\ncontract_weight_version 4.0\n" in other and "own_steps" not in other
