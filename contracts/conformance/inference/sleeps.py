"""Puts servers to sleep and wakes them, with requests in flight. G19 uses it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.http_client import describe_request
from contracts.conformance.inference.load import FIRST_TRY, check_finished
from contracts.conformance.inference.mixed_batch import limits_of
from contracts.conformance.inference.mixed_load import cancelling, side_by_side
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.seeds import TEMPERATURE
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.timed_stream import TimedStream
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

SLEEP = "/sleep"
WAKE = "/wake"
TOGETHER = 4  # requests in flight on each server
CANDIDATES = 16  # requests with a seed, of which those run that end last
MORE_ATTEMPTS = 8  # at the longest length
LEAST_HOLD_S = 30
QUIET_S = 0.5  # without a token, after which none is expected any more
FIELDS = ("released_bytes", "held", "hold_timeout_s", "seconds")


def sleep_request(trainer: TrainerPeer, **changes: object) -> dict[str, Any]:
    patience_s = trainer.settings.patience_s
    return {"run": trainer.run, "epoch": trainer.epoch, "timeout_s": patience_s} | changes


def wake_request(trainer: TrainerPeer) -> dict[str, Any]:
    return {"run": trainer.run, "epoch": trainer.epoch}


async def put_to_sleep(trainer: TrainerPeer, server: Server, **changes: object) -> dict[str, Any]:
    """Puts a server to sleep. Returns the response. Raises GuaranteeError if it is not the contract's."""
    request = sleep_request(trainer, **changes)
    before = await server.contract()
    status, body = await server.post(SLEEP, request)
    numbers = [body.get(name) for name in FIELDS]
    if body.get("hold_timeout_s", LEAST_HOLD_S) < LEAST_HOLD_S:
        raise GuaranteeError(
            f"hold_timeout_s is {body['hold_timeout_s']}",
            f"{LEAST_HOLD_S} at least, or requests may end before the kit wakes the server",
            "start the server with a longer hold timeout",
        )
    if status != 200 or not all(isinstance(value, int | float) and value >= 0 for value in numbers):
        raise GuaranteeError(
            f"{status} {body}", f"200 and {', '.join(FIELDS)}", describe_request(SLEEP, request)
        )
    again = await server.post(SLEEP, request)
    if again != (status, body):
        raise GuaranteeError(
            f"{again[0]} {again[1]}", f"the first answer again: {body}", f"{server}: the same {SLEEP}, twice"
        )
    health = await server.get("/health")
    if (health[0], health[1].get("status")) != (200, "asleep"):
        raise GuaranteeError(f"/health is {health}", "200 and asleep", describe_request(SLEEP, request))
    after = await server.contract()
    said = (before.run, before.group, before.weights)
    if said != (after.run, after.group, after.weights):
        raise GuaranteeError(
            f"/contract said {said}, and says {(after.run, after.group, after.weights)}",
            "run, group and weights as before the sleep",
            describe_request(SLEEP, request),
        )
    return body


async def wake(trainer: TrainerPeer, server: Server, version: int) -> None:
    """Wakes a server that kept its weights, which are of `version`."""
    request = wake_request(trainer)
    status, body = await server.post(WAKE, request)
    if status != 200 or body.get("version") != version or not body.get("seconds", -1) >= 0:
        raise GuaranteeError(
            f"{status} {body}", f"200, version {version} and seconds", describe_request(WAKE, request)
        )
    await check_awake(server, WAKE)


async def check_awake(server: Server, after: str) -> None:
    status, body = await server.get("/health")
    if (status, body.get("status")) != (200, "ready"):
        raise GuaranteeError(f"/health is {status} {body}", "200 and ready", f"{server}: {after}")


@dataclass
class Held:
    """Requests of one server that run when it falls asleep.

    asked: the fields of each. server_grace_s: how long tokens may be on their way.
    """

    server: Server
    server_grace_s: float
    asked: list[dict[str, Any]]
    tasks: list[asyncio.Task[Sample]]
    streams: list[TimedStream] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        return sum(not task.done() for task in self.tasks)

    def arrived(self) -> int:
        """Returns the number of tokens that streams have delivered so far."""
        return sum(len(stream.arrivals) for stream in self.streams)

    async def check_quiet(self, held: int) -> None:
        """Checks that no token arrives any more and no request ends. `held`: how many must be unfinished.

        Tokens that were sampled before the sleep may be on their way.
        """
        windows = int(self.server_grace_s / QUIET_S)
        for _ in range(windows):
            before = (self.arrived(), self.unfinished)
            await asyncio.sleep(QUIET_S)
            if (self.arrived(), self.unfinished) == before:
                break
        else:
            raise GuaranteeError(
                f"tokens arrived {self.server_grace_s:g} s after the server had fallen asleep",
                "a server that sleeps samples nothing",
                f"{self.server}: stream completions, POST {SLEEP}, and read on",
            )
        if self.unfinished < held:
            raise GuaranteeError(
                f"held was {held}, and {self.unfinished} requests are unfinished",
                "a server that sleeps ends no request that it holds, and counts no other",
                f"{self.server}: complete, POST {SLEEP}, and wait",
            )


@contextlib.asynccontextmanager
async def running(bench: Bench, server: Server, max_tokens: int, seed: int = 0) -> AsyncIterator[Held]:
    """Runs requests on a server, half of them streamed and half with a seed, where it offers that."""
    capabilities = await bench.offered("capabilities")
    held = Held(server, bench.settings.grace_s, [], [])
    held.asked = [_plain(bench, max_tokens, seed + i) for i in range(TOGETHER)]
    if "seed" in capabilities:
        held.asked[TOGETHER // 2 :] = await _seeded(bench, server, max_tokens, seed)
    for i, fields in enumerate(held.asked):
        if "stream" in capabilities and i % 2:
            stream = TimedStream(server, **fields)
            held.streams.append(stream)
            held.tasks.append(asyncio.create_task(stream.read()))
        else:
            held.tasks.append(asyncio.create_task(server.complete(**fields)))
    async with cancelling([*held.tasks]):
        await side_by_side(server, held.tasks)
        yield held


def _plain(bench: Bench, max_tokens: int, seed: int) -> dict[str, Any]:
    return {"prompt": bench.reference.prompt(5 + 7 * (seed % TOGETHER), seed=seed), "max_tokens": max_tokens}


async def _seeded(bench: Bench, server: Server, max_tokens: int, first: int) -> list[dict[str, Any]]:
    """Returns half of the requests: of `CANDIDATES` seeds those whose completions are longest."""
    temperature = min(TEMPERATURE, (await limits_of(server)).max_temperature)
    seeds = range(first, first + CANDIDATES)
    asked = [_plain(bench, max_tokens, i) | {"seed": i, "temperature": temperature} for i in seeds]
    samples = await asyncio.gather(*(server.complete(**fields) for fields in asked))
    order = sorted(range(CANDIDATES), key=lambda i: len(samples[i].token_ids))
    return [asked[i] for i in order[-TOGETHER // 2 :]]


async def completed(bench: Bench, held: Held, max_tokens: int) -> list[Sample]:
    """Returns the requests, each of which must complete."""
    samples = [await task for task in held.tasks]
    for sample in samples:
        check_finished(bench, held.server, sample, max_tokens)
    return samples


def attempts(bench: Bench) -> Iterator[tuple[int, int]]:
    """Yields lengths in tokens and first seeds to try, until requests outlast what happens to the server.

    Raises GuaranteeError after the last attempt.
    """
    lengths = [*dict.fromkeys(min(FIRST_TRY * 4**i, bench.context - 64) for i in range(5))]
    for i, max_tokens in enumerate(lengths + lengths[-1:] * MORE_ATTEMPTS):
        yield max_tokens, i * CANDIDATES
    raise GuaranteeError(
        f"no request of {lengths[-1]} tokens still ran when the server slept",
        "a server that can be seen to generate: serve a model with a longer context",
        f"complete {bench.reference.prompt(5)}, and POST {SLEEP} meanwhile",
    )
