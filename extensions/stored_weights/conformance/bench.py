"""The setup of every check of stored weights: a run, its store, and sources of that store."""

import contextlib
import random
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError
from extensions.stored_weights.conformance.peer import ChannelPeer
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import KitStore, Offer
from extensions.stored_weights.store.manifest import DELTA_DTYPES

VERSIONS = 10_000  # upper bound of the versions of one store
KINDS = ("relay", "shared")


@dataclass
class StoreBench:
    """A run, its store, and comparisons of the servers with it."""

    bench: Bench
    run: ChannelPeer
    store: KitStore
    first_seed: int
    weights: dict[int, Weights] = field(default_factory=dict)  # offered version -> weights

    def fresh(self, version: int) -> Weights:
        """Returns weights unlike those of other stores, of which servers may still have files."""
        return self.bench.weights(self.first_seed + version)

    def offer(self, version: int, weights: Weights | None = None, **options: object) -> Offer:
        """Writes a version, by default with the full files of `fresh(version)`."""
        weights = self.fresh(version) if weights is None else weights
        self.weights[version] = weights
        return self.store.offer(version, weights, epoch=self.run.epoch, **options)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def sources(self, count: int) -> AsyncIterator[list[Source]]:
        """Serves the store from several sources until the block ends."""
        async with contextlib.AsyncExitStack() as stack:
            address = self.bench.settings.address
            made = [Source(self.store.directory, address) for _ in range(count)]
            yield [await stack.enter_async_context(source.serving()) for source in made]

    async def serves(self, offer: Offer, what: str) -> float:
        """Checks that all servers compute with a version. Returns the largest error in nats."""
        servers = self.bench.servers
        off = [await self.bench.check_content(s, offer.weights, offer.version, what) for s in servers]
        return max(off)

    async def pulled(self, offer: Offer, what: str, **changes: object) -> float:
        """Makes the servers pull a version, and checks its content. Returns the largest error in nats."""
        await self.run.pull(offer, what, **changes)
        return await self.serves(offer, what)

    def check_first_span(self, server: Server, sample: Sample) -> float:
        """Returns the largest error, in nats, of the tokens before the first change of weights."""
        version, _, end = sample.spans[0]
        where = f"{server}: pull versions while {sample.prompt_token_ids} is completed"
        if version not in self.weights:
            raise GuaranteeError(f"a label says version {version}", f"one of {sorted(self.weights)}", where)
        return self.bench.compare(sample, self.weights[version], where, upto=end)


@contextlib.asynccontextmanager
async def new_store(bench: Bench) -> AsyncIterator[StoreBench]:
    """Starts a run with an empty store, whose directory is deleted at the end of the block."""
    run = ChannelPeer(bench.servers, bench.reference.tied, bench.settings)
    with tempfile.TemporaryDirectory(prefix="kit-store-") as directory:
        try:
            store = KitStore(Path(directory), run.run, bench.reference.tied)
            yield StoreBench(bench, run, store, random.randrange(2**31) * VERSIONS)
        finally:
            run.leave()


async def declared_kinds(bench: Bench, kinds: Sequence[str] = KINDS) -> list[str]:
    """Returns the kinds that all servers declare. Raises NotDeclaredError if there are none."""
    capabilities = await bench.offered("capabilities")
    found = [kind for kind in kinds if kind in capabilities]
    if not found:
        raise NotDeclaredError(f"capabilities have no {' and no '.join(kinds)}")
    return found


async def delta_dtype(bench: Bench) -> torch.dtype | None:
    """Returns a dtype for deltas, or None if the servers do not support deltas."""
    if "delta" not in await bench.offered("capabilities"):
        return None
    accepted = await bench.offered("accepts_dtypes")
    name = next((name for name in DELTA_DTYPES if name in accepted), None)
    return getattr(torch, name) if name else None
