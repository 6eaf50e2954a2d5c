"""Watches servers during updates: labels, tokens and `/contract` must always agree."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

from contracts.conformance.inference.bench import SHORT
from contracts.conformance.inference.load import check_finished
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import StoreBench

CLIENTS = 4  # per server
POLL_CONTRACT_S = 0.01  # polling interval of /contract


class Watch:
    """The responses to clients, and the versions in `/contract`, during the block of `watching`."""

    def __init__(self, at: StoreBench):
        self.at = at
        self.answers: list[tuple[Server, Sample]] = []
        self.reported: dict[str, list[int]] = {server.url: [] for server in at.bench.servers}
        self.ends = asyncio.Event()

    def check(self, what: str) -> float:
        """Returns the largest error, in nats, of the tokens under the weights of their labels.

        Raises GuaranteeError if it is too large, or a version decreased.
        """
        for url, versions in self.reported.items():
            fallen = [(a, b) for a, b in itertools.pairwise(versions) if b < a]
            if fallen:
                raise GuaranteeError(
                    f"/contract said version {fallen[0][0]}, then {fallen[0][1]}",
                    "versions that never fall within a run",
                    f"{url}: {what}",
                )
        return max([self.at.check_first_span(server, sample) for server, sample in self.answers], default=0.0)

    async def client(self, server: Server, seed: int) -> None:
        """Sends requests, one at a time. None may start with an older version than the previous one."""
        newest = -1
        for i in itertools.count():
            if self.ends.is_set():
                return
            prompt = self.at.bench.reference.prompt(8, seed=1000 * seed + i)
            sample = await server.complete(prompt, SHORT, temperature=1)
            check_finished(self.at.bench, server, sample, SHORT)
            if sample.spans[0][0] < newest:
                raise GuaranteeError(
                    f"a request has the spans {sample.spans} after an earlier one was labelled {newest}",
                    "labels that never fall",
                    f"{server}: complete {prompt}, after others",
                )
            newest = sample.spans[-1][0]
            self.answers.append((server, sample))

    async def poll_version(self, server: Server) -> None:
        """Records the live version repeatedly."""
        while not self.ends.is_set():
            self.reported[server.url].append((await server.contract()).weights.version)
            await asyncio.sleep(POLL_CONTRACT_S)


@contextlib.asynccontextmanager
async def watching(at: StoreBench) -> AsyncIterator[Watch]:
    """Sends requests and polls `/contract` until the block ends. Errors of clients propagate."""
    watch = Watch(at)
    servers = at.bench.servers
    tasks = [asyncio.create_task(watch.poll_version(server)) for server in servers]
    tasks += [asyncio.create_task(watch.client(s, seed)) for s in servers for seed in range(CLIENTS)]
    async with cancelling(tasks):
        yield watch
        watch.ends.set()
        await asyncio.gather(*tasks)
