"""Checks that requests that arrive during an update are queued and answered, never refused. G2 uses it."""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.buckets import bucket_bytes_for, packed
from contracts.conformance.inference.every_route import completions_on_every_route, score_of
from contracts.conformance.inference.mixed_load import InFlight, cancelling, mixed_load, some_wait
from contracts.conformance.inference.responsiveness import Responsiveness
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

BUCKETS = 4
PATIENCE_S = 20.0  # for a response while buckets are missing, on a shared machine
QUEUE = 10  # factor of PATIENCE_S if a server has fewer slots than requests
BESIDE = (4, 16, 64)  # requests in flight per server during the update, by attempt
Asked = list[tuple[Server, asyncio.Task[list[Sample]]]]


async def requests_arrive(
    bench: Bench, trainer: TrainerPeer, receive: str, speed: Responsiveness, hold_s: float
) -> float:
    """Publishes while requests arrive, and returns the largest error, in nats.

    If all streams end before a staged transfer does, they cannot show whether it blocks generation. Then
    repeats the check with another version and more streams.
    """
    worst = 0.0
    for beside in BESIDE:
        arrivals = Arrivals(bench, trainer, receive, speed, beside)
        worst = max(worst, await arrivals.check(hold_s))
        if arrivals.progressed == set(bench.servers) or not await arrivals.can_show_progress():
            break
    return worst


class Arrivals:
    """One weight update during which requests arrive on every route, between its buckets."""

    def __init__(self, bench: Bench, trainer: TrainerPeer, receive: str, speed: Responsiveness, beside: int):
        self.bench = bench
        self.trainer = trainer
        self.receive = receive
        self.beside = beside
        self.progressed: set[Server] = set()  # servers with a stream that progressed in the last round
        self.queued = False  # True if a server generates fewer requests at a time than it was sent
        # May be long, because a server that blocks generation never responds: it waits for the last bucket,
        # which waits for the responses.
        self.patience_s = max(PATIENCE_S, 4 * speed.limit_s)
        self.version = trainer.version + 1
        self.what = f"requests arrive between the buckets of version {self.version} ({receive})"
        self.asked: Asked = []
        self.sent: list[asyncio.Task[Any]] = []
        self.exact = False  # True if each prompt is read by a single weight version

    async def check(self, hold_s: float) -> float:
        """Returns the largest error, in nats. With `paused`, waits for `hold_s` before the last bucket."""
        capabilities = await self.bench.offered("capabilities")
        self.exact = "recompute" in await self.bench.offered("kv_cache")
        weights = self.bench.weights(self.version)
        size = bucket_bytes_for(weights, BUCKETS)
        buckets = packed(weights, size)
        async with (
            mixed_load(self.bench, self.beside, self.bench.context // 2) as beside,
            cancelling(self.sent),
        ):
            self.queued = await some_wait(self.bench.servers)
            if self.queued:
                self.patience_s *= QUEUE  # the requests already in flight occupy the slots
            request = self.trainer.update_request(
                self.version,
                weights,
                receive=self.receive,
                bucket_bytes=size,
                timeout_s=self.bench.settings.timeout_s + 2 * self.patience_s + hold_s,
                kv_cache="recompute" if self.exact else "keep",
            )
            await self.trainer.request_update(request)
            await self._arrive(beside, capabilities)
            for bucket in buckets[:-1]:
                await self.trainer.send([bucket])
                await self._arrive(beside, capabilities)
            if self.receive == "paused":
                beside = await self._disconnect_half(beside, hold_s)
            await self.trainer.send(buckets[-1:])
            size = sum(bucket.nbytes for bucket in buckets)
            await self.trainer.wait_until_live(self.version, size, self.what)
            await self._check_progress(beside, "after live")
            found = [(server, sample) for server, task in self.asked for sample in await task]
            await asyncio.gather(*self.sent)
        return max(self._check(server, sample) for server, sample in found)

    async def can_show_progress(self) -> bool:
        """Returns True if streams are offered and none of them waits for a slot."""
        streams = "stream" in await self.bench.offered("capabilities")
        return streams and self.receive == "staged" and not self.queued

    async def _disconnect_half(self, beside: list[InFlight], hold_s: float) -> list[InFlight]:
        """Closes the connection of every second request in flight. Returns the others after `hold_s`."""
        for one in beside[::2]:
            one.task.cancel()
        await asyncio.sleep(hold_s)
        return beside[1::2]

    async def _arrive(self, beside: list[InFlight], capabilities: list[str]) -> None:
        """Sends a request on every route. If the update is staged, waits for all responses."""
        now: list[asyncio.Task[Any]] = []
        for server in self.bench.servers:
            for ask in completions_on_every_route(self.bench, server, capabilities, seed=len(self.asked)):
                now.append(asyncio.create_task(ask))
                self.asked.append((server, now[-1]))
            if "score" in capabilities:
                now.append(asyncio.create_task(score_of(self.bench, server, self.what)))
        self.sent += now
        if self.receive != "staged":
            return
        await asyncio.wait(now, timeout=self.patience_s)
        if not all(task.done() for task in now):
            raise GuaranteeError(
                f"no answer while the update was staged, within {self.patience_s:.1f} s",
                "generation goes on",
                self.what,
            )
        self.progressed = await self._check_progress(beside, "while the update was staged")

    async def _check_progress(self, beside: list[InFlight], when: str) -> set[Server]:
        """Waits until each stream in flight has another token, and returns the streams' servers."""
        deadline = asyncio.get_running_loop().time() + self.patience_s
        streaming = {one.server for one in beside if one.stream and not one.task.done()}
        for one in beside:
            tokens = len(one.stream.arrivals) if one.stream else 0
            while one.stream and not one.task.done() and len(one.stream.arrivals) == tokens:
                if asyncio.get_running_loop().time() > deadline:
                    raise GuaranteeError(
                        f"no token of a request in flight {when}, for {self.patience_s:.1f} s",
                        "generation goes on",
                        self.what,
                    )
                await asyncio.sleep(0.005)
            if one.task.done():
                one.task.result()
        return streaming

    def _check(self, server: Server, sample: Sample) -> float:
        """Checks that a request is complete and its first log-probabilities are right."""
        bench = self.bench
        allowed = (self.version - 1, self.version)
        ends = sample.finish_reason == "length" and len(sample.token_ids) == SHORT
        if not ends and sample.token_ids[-1:] not in [[end] for end in bench.reference.ends]:
            raise GuaranteeError(
                f"{server}: {sample.finish_reason!r} after {len(sample.token_ids)} tokens",
                f"`length` after {SHORT}, or `stop` with end-of-sequence",
                self.what,
            )
        label, start, end = sample.spans[0]
        if label not in allowed:
            raise GuaranteeError(f"spans {sample.spans}", f"versions {allowed}", self.what)
        if label == self.version and not self.exact:
            return 0.0  # with `keep`, older weights may have read a part of the prompt
        expected = bench.reference.logprobs(bench.weights(label), sample.prompt_token_ids, sample.token_ids)
        return bench.check_positions(sample, expected, self.what, range(start, end))
