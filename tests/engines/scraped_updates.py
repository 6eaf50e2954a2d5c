"""The metrics of a real server after a weight update and a completion."""

import asyncio

import aiohttp

from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.metrics import METRICS
from tests.inference_adapters.metrics import Labels, scraped, status_without_token, value
from tests.limits import HANG_S

VERSION = 7
TOKENS = 20


def metrics_after_an_update(url: str, model: str, token: str) -> dict[str, dict[Labels, float]]:
    """Returns every sample after an update to version 7, one that is called off, and 20 sampled tokens.

    It checks the contract's samples.
    """
    assert status_without_token(url) == 401
    before = scraped(url, token)
    asyncio.run(_update_and_complete(url, Reference(model), token))
    samples = scraped(url, token)
    assert {metric.name for metric in METRICS} <= samples.keys()
    assert value(samples, "contract_weight_version") == VERSION
    assert value(samples, "contract_resident_bytes") > 2**20

    def grown(name: str, **labels: str) -> float:
        return value(samples, name, **labels) - value(before, name, **labels)

    for state in ("live", "failed"):
        assert grown("contract_weight_updates_total", state=state) == 1
    seconds = grown("contract_weight_update_seconds_total")
    assert 0 < grown("contract_weight_update_paused_seconds_total") <= seconds < 60
    assert grown("contract_sampled_tokens_total") == TOKENS
    for status in ("200", "401"):
        assert grown("contract_http_requests_total", status=status) == 1
    return samples


async def _update_and_complete(url: str, reference: Reference, token: str) -> None:
    async with aiohttp.ClientSession() as http:
        server = Server(http, url, token)
        trainer = TrainerPeer([server], reference.tied, Settings(token=token, timeout_s=HANG_S))
        try:
            await trainer.join()
            await trainer.publish(VERSION, reference.weights(VERSION))
            sample = await server.complete([5, 6, 7], TOKENS, temperature=0)
            assert len(sample.token_ids) == TOKENS
            await trainer.request_update(trainer.update_request(VERSION + 1, reference.weights(VERSION)))
            called_off = {"run": trainer.run, "epoch": trainer.epoch, "version": VERSION + 1}
            await server.post("/abort_weight_update", called_off)
            async with http.post(f"{url}/v1/completions", json={}) as refused:
                assert refused.status == 401
        finally:
            trainer.leave()
