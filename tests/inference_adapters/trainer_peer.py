"""The trainer's side of the inference contract, with real parts: a weight store, rank 0, and HTTP."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping

import aiohttp
import torch

from contracts.inference import Parameter
from contracts.weights import (
    WeightGroup,
    WeightManifest,
    WeightStore,
    dtype_name,
    pack_bucket,
    plan_buckets,
    send_weights,
)
from inference_adapters.scripted import EMBED, HEAD, ScriptedEngine
from tests.limits import HANG_S

Weights = Mapping[str, torch.Tensor]
BUCKET_BYTES = 512  # of about 3.9 kB in total


class TrainerPeer:
    """One run of a trainer with one server. Every call returns (HTTP status, body)."""

    def __init__(self, http: aiohttp.ClientSession, url: str):
        self.http, self.url = http, url
        self.run = uuid.uuid4().hex
        self.epoch = 0
        self.group: WeightGroup | None = None

    async def get(self, path: str) -> tuple[int, dict]:
        async with self.http.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: dict) -> tuple[int, dict]:
        async with self.http.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    # --- weights

    def join_request(self, port: int, **changes) -> dict:
        request = {
            "run": self.run, "takeover": True, "epoch": self.epoch,
            "group_name": f"weights-{uuid.uuid4().hex}", "backend": "gloo", "master_address": "127.0.0.1",
            "master_port": port, "rank_offset": 1, "world_size": 2, "timeout_s": HANG_S,
        }  # fmt: skip
        return request | changes

    async def join(self, **changes) -> tuple[int, dict]:
        """Opens the next epoch, as rank 0 of a new store."""
        self.leave()
        self.epoch += 1
        store = WeightStore("127.0.0.1", 0, HANG_S)
        request = self.join_request(store.port, **changes)
        form = asyncio.to_thread(store.group, request["group_name"], 2, "gloo", HANG_S)
        answer, self.group = await asyncio.gather(self.post("/init_process_group", request), form)
        return answer

    def leave(self) -> None:
        if self.group:
            self.group.close()
            self.group = None

    def update_request(self, version: int, weights: Weights, **changes) -> dict:
        parameters = [
            {"name": name, "dtype": dtype_name(t.dtype), "shape": list(t.shape)}
            for name, t in weights.items()
        ]
        request = {
            "run": self.run, "epoch": self.epoch, "version": version, "parameters": parameters,
            "tied": {HEAD: EMBED}, "bucket_bytes": BUCKET_BYTES, "kv_cache": "keep", "receive": "paused",
            "timeout_s": HANG_S,
        }  # fmt: skip
        return request | changes

    async def request_update(self, version: int, weights: Weights, **changes) -> tuple[int, dict]:
        return await self.post("/request_weight_update", self.update_request(version, weights, **changes))

    async def send(self, weights: Weights, bucket_bytes: int = BUCKET_BYTES) -> None:
        manifest = WeightManifest(parameters_of(weights), {HEAD: EMBED})
        await asyncio.to_thread(
            send_weights, self.group, manifest, iter(weights.items()), bucket_bytes, HANG_S
        )

    async def broadcast(self, bucket: torch.Tensor) -> None:
        await asyncio.to_thread(self.group.broadcast, bucket, HANG_S)

    async def publish(self, version: int, weights: Weights, **changes) -> dict:
        """Makes a complete update and returns its final status."""
        status, body = await self.request_update(version, weights, **changes)
        assert status == 202, body
        await self.send(weights, changes.get("bucket_bytes", BUCKET_BYTES))
        return await self.ended(version)

    async def ended(self, version: int) -> dict:
        status, body = await self.get(f"/weight_update/{version}?wait_s={HANG_S}")
        assert status == 200 and body["state"] != "receiving", body
        return body

    # --- generation

    async def complete(self, prompt: str | list[int] = "hello", max_tokens: int = 12, **changes) -> dict:
        request = {
            "model": "scripted",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "logprobs": True,
        } | changes
        status, body = await self.post("/v1/completions", request)
        assert status == 200, body
        return body

    async def greedy(self) -> list[tuple[int, float]]:
        """Returns the (token id, log-probability) pairs that a refusal must not change."""
        choice = (await self.complete(temperature=0))["choices"][0]
        return list(zip(choice["token_ids"], logprobs(choice), strict=True))

    async def running(self) -> int:
        return (await self.get("/contract"))[1]["process"]["running"]

    async def wait_running(self, count: int) -> None:
        while await self.running() != count:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def trainer_of(url: str) -> AsyncIterator[TrainerPeer]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(HANG_S)) as http:
        trainer = TrainerPeer(http, url)
        yield trainer
        trainer.leave()


@contextlib.asynccontextmanager
async def joined_trainer(url: str) -> AsyncIterator[TrainerPeer]:
    """Yields a new run that has taken over the server and published version 1 (`weights(1)`)."""
    async with trainer_of(url) as trainer:
        status, body = await trainer.join()
        assert status == 200, body
        assert (await trainer.publish(1, weights(1)))["state"] == "live"
        yield trainer


def weights(seed: int) -> dict[str, torch.Tensor]:
    return ScriptedEngine.initial_weights(seed)


def parameters_of(weights: Weights) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, dtype=dtype_name(t.dtype), shape=tuple(t.shape)) for name, t in weights.items()
    )


def packed(weights: Weights) -> list[torch.Tensor]:
    """Returns the buckets that `publish` sends."""
    buckets = plan_buckets(parameters_of(weights), BUCKET_BYTES)
    return [pack_bucket(weights[p.name] for p in bucket) for bucket in buckets]


def logprobs(choice: dict) -> list[float]:
    return [item["logprob"] for item in choice["logprobs"]["content"]]


def state_of(contract: dict) -> tuple[int, str]:
    """Returns the version and the state of the weights in a response to `GET /contract`."""
    return contract["weights"]["version"], contract["weights"]["state"]


def expect(answer: tuple[int, dict], status: int, code: str) -> None:
    """Asserts that a response is this error."""
    assert (answer[0], answer[1].get("error", {}).get("code")) == (status, code), answer
