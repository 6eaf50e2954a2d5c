"""Requests that cross an update, of which a guarantee knows what the weights of each version give."""

import asyncio
from collections.abc import Callable
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import in_flight
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

TOGETHER = 4  # requests on each server during an update or a sleep
TRIES = 5  # until one has met a running request of every server

Fields = Callable[[int], dict[str, Any]]


class CrossingUpdates:
    """Publishes versions while requests run. fields_of: returns further fields of a server's request.

    With `keep`, a version has the weights of the one before, so that one forward gives all tokens. At the end
    the servers have the weights of their version, as the other parts of a guarantee expect.
    """

    def __init__(self, bench: Bench, trainer: TrainerPeer, fields_of: Fields):
        self._bench = bench
        self._trainer = trainer
        self._fields_of = fields_of
        self._seeds = {trainer.version: trainer.version}  # of the weights of each version

    def weights(self, version: int) -> Weights:
        return self._bench.weights(self._seeds[version])

    async def _publish_own(self) -> None:
        version = self._trainer.version
        if self._seeds[version] != version:
            self._seeds[version + 1] = version + 1
            await self._trainer.publish(version + 1, self.weights(version + 1))

    async def cross(self, kv_cache: str) -> list[tuple[int, Sample, str]]:
        """Publishes until a request of every server crosses an update. Returns the requests of that one.

        Each has its number on its server, its completion, and how to reproduce it. Raises GuaranteeError.
        """
        bench = self._bench
        tokens = bench.context // 2
        for _ in range(TRIES):
            version = self._trainer.version + 1
            self._seeds[version] = self._seeds[version - 1] if kv_cache == "keep" else version
            async with in_flight(bench, TOGETHER, tokens, fields_of=self._fields_of) as tasks:
                await self._trainer.publish(version, self.weights(version), kv_cache=kv_cache)
                await asyncio.gather(*(task for _, task in tasks))
            found = [(server, task.result()) for server, task in tasks]
            if {server for server, sample in found if len(sample.spans) > 1} == set(bench.servers):
                await self._publish_own()
                how = f"publish version {version}, {kv_cache}, while requests with {self._fields_of(0)} run"
                return [
                    (number % TOGETHER, sample, f"{server}: {how}")
                    for number, (server, sample) in enumerate(found)
                ]
        raise GuaranteeError(
            f"no request of every server crossed one of {TRIES} updates",
            "generation goes on through an update",
            f"keep {TOGETHER} requests of {tokens} tokens running and publish a version",
        )
