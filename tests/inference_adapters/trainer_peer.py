"""The kit's trainer with one server: its updates may fail, and a completion is what the server answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import torch

from contracts.conformance.inference.buckets import packed
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.trainer_peer import TrainerPeer
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.limits import HANG_S


class TrainerOfOne(TrainerPeer):
    """One run of a trainer with one server."""

    def __init__(self, http: aiohttp.ClientSession, url: str):
        self.http = http
        self.server = Server(http, url, None)
        self.get = self.server.get
        self.post = self.server.post
        super().__init__([self.server], {HEAD: EMBED}, Settings(timeout_s=HANG_S))

    async def publish(self, version: int, weights: Weights, **changes) -> dict:
        """Makes a complete update and returns its final status."""
        request = self.update_request(version, weights, **changes)
        await self.request_update(request)
        await self.send(packed(weights, request["bucket_bytes"]))
        return await self.ended(version)

    async def ended(self, version: int) -> dict:
        return (await self.outcome(self.server, version)).model_dump()

    async def complete(self, prompt: str | list[int] = "hello", max_tokens: int = 12, **changes) -> dict:
        request = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": True}
        return await self.server.generate("/v1/completions", request | changes)

    async def greedy(self) -> list[tuple[int, float]]:
        """Returns the (token id, log-probability) pairs that a refusal must not change."""
        choice = (await self.complete(temperature=0))["choices"][0]
        return list(zip(choice["token_ids"], logprobs(choice), strict=True))

    async def wait_running(self, count: int) -> None:
        while (await self.server.contract()).process.running != count:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def trainer_of(url: str) -> AsyncIterator[TrainerOfOne]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HANG_S)) as http:
        trainer = TrainerOfOne(http, url)
        yield trainer
        trainer.leave()


@contextlib.asynccontextmanager
async def joined_trainer(url: str) -> AsyncIterator[TrainerOfOne]:
    """Yields a new run that has taken over the server and published version 1 (`weights(1)`)."""
    async with trainer_of(url) as trainer:
        await trainer.join()
        assert (await trainer.publish(1, weights(1)))["state"] == "live"
        yield trainer


def weights(seed: int) -> dict[str, torch.Tensor]:
    return ScriptedEngine.initial_weights(seed)


def logprobs(choice: dict) -> list[float]:
    return [item["logprob"] for item in choice["logprobs"]["content"]]
