"""G12: a version that comes from a store is the version that was signed, however it came."""

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.load import complete_across
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import (
    StoreBench,
    declared_kinds,
    delta_dtype,
    new_store,
)
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import FILES, Offer
from extensions.stored_weights.conformance.variants import in_dtype, nudged, partly

CHAIN = 3  # length of a chain of deltas
ONE_BY_ONE = 1000  # number of files, so large that each tensor has its own


async def relay(bench: Bench) -> str:
    """Offers full versions, deltas and chains of deltas over a relay, and compares contents."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at, at.sources(2) as sources:
        await at.run.join_channel(at.store, sources)
        offers = [at.offer(1), at.offer(2, files=1), at.offer(3, files=ONE_BY_ONE)]
        worst = max([await at.pulled(offer, f"pull version {offer.version}") for offer in offers])
        worst = max(worst, await _unchanged_files(at, sources))
        worst = max(worst, await _under_load(at))
        dtype = await delta_dtype(at.bench)
        if dtype:
            worst = max(worst, await _deltas(at, dtype))
    deltas = f"a delta, a chain of {CHAIN}" if dtype else "no deltas"
    return f"full versions, unchanged files, {deltas}, under load (relay): off by {worst:.0e}"


async def follow(bench: Bench) -> str:
    """Makes the servers follow `latest.json` of a relay, and compares contents."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at, at.sources(2) as sources:
        return f"versions that are followed: off by {await _followed(at, sources):.0e}"


async def shared(bench: Bench) -> str:
    """Offers full versions in a shared directory, and compares contents."""
    await declared_kinds(bench, ["shared"])
    async with new_store(bench) as at:
        await at.run.join_shared(at.store)
        offers = [at.offer(1), at.offer(2, files=1)]
        worst = max([await at.pulled(offer, f"read version {offer.version}") for offer in offers])
        return f"shared: off by {max(worst, await _under_load(at)):.0e}"


PARTS = {
    "relay": relay,
    "follow": follow,
    "shared": shared,
}


async def _unchanged_files(at: StoreBench, sources: list[Source]) -> float:
    """Checks that servers do not fetch files again that they have."""
    version = at.run.version + 1
    old = at.offer(version)
    worst = await at.pulled(old, f"pull version {version}")
    before = sum(source.object_requests(old.full) for source in sources)
    new = at.offer(version + 1, partly(old.weights, at.fresh(version + 1)))
    what = f"pull version {version + 1}, of which only the first of {FILES} files is new"
    worst = max(worst, await at.pulled(new, what))
    again = sum(source.object_requests(set(old.full)) for source in sources) - before
    if again:
        raise GuaranteeError(
            f"{again} requests for files of version {version} after it was live",
            "none: a file that is here is not fetched again",
            what,
        )
    return worst


async def _under_load(at: StoreBench) -> float:
    """Pulls versions while requests run, which must continue with their tokens."""

    async def update() -> None:
        version = at.run.version + 1
        await at.run.pull(at.offer(version), f"pull version {version} while requests run")

    _, worst = await complete_across(at.bench, at.run, update, at.check_first_span)
    return max(worst, await at.serves(at.offer(at.run.version), "pull versions while requests run"))


async def _deltas(at: StoreBench, dtype: torch.dtype) -> float:
    """Pulls a full version, a delta on it, and a version that needs a chain of deltas."""
    version = at.run.version + 1
    base = at.offer(version, in_dtype(at.fresh(version), dtype))
    worst = await at.pulled(base, f"pull version {version} in {dtype}")
    first = _delta(at, base)
    worst = max(worst, await at.pulled(first, f"pull version {first.version}, a delta on {version}"))
    last = first
    for _ in range(CHAIN):
        last = _delta(at, last)
    what = f"pull version {last.version}, which needs the deltas from {first.version} on"
    return max(worst, await at.pulled(last, what))


def _delta(at: StoreBench, base: Offer) -> Offer:
    version = base.version + 1
    return at.offer(version, nudged(base.weights, version), base=base, full=False)


async def _followed(at: StoreBench, sources: list[Source]) -> float:
    """Makes the servers follow `latest.json`. Returns the largest error in nats."""
    await at.run.join_channel(at.store, sources, follow=True)
    worst = 0.0
    for _ in range(2):
        offer = at.offer(at.run.version + 1)
        at.store.announce(offer)
        what = f"follow, and sign version {offer.version} as the latest"
        await at.run.is_live(offer, what)
        worst = max(worst, await at.serves(offer, what))
    return worst
