"""G15: a pull goes on where it was interrupted, and a source that hangs holds nothing up for long."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import StoreBench, declared_kinds, new_store
from extensions.stored_weights.conformance.faults import MUTE, SILENT, STALLED, Fault, trickle
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.store.layout import latest_path, manifest_path

SHARES = (0.1, 0.5, 0.9)  # shares of a version after which the only source is killed
MOST = 1.1  # maximum of the fetched bytes, in sizes of a version
TAKES_S = 0.5  # duration of an undisturbed transfer
DOWN_S = 0.3
TRICKLE = 20.0  # bytes per second of a slow source
LEAST = 1000  # bytes per second below which a transfer is cancelled
HANGS = (MUTE, SILENT, STALLED, trickle(TRICKLE))


async def deaths(bench: Bench) -> str:
    """Kills the only source at several points, and checks the number of bytes that are fetched again."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at:
        async with at.sources(1) as sources:
            await at.run.join_channel(at.store, sources)
            await at.run.pull(at.offer(1), "pull version 1")
        fetched = max([await _dies(at, share) for share in SHARES])
    at_points = ", ".join(f"{share:.0%}" for share in SHARES)
    return f"the only source died at {at_points}: {fetched:.2f} versions were fetched in all"


async def hangs(bench: Bench) -> str:
    """Makes one of two sources hang, and checks that versions become live."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at:
        for fault in HANGS:
            await _hangs(at, fault)
    return f"beside {len(HANGS)} sources that hang, each version became live"


PARTS = {
    "deaths": deaths,
    "hangs": hangs,
}


async def _dies(at: StoreBench, share: float) -> float:
    """Kills the source during a transfer, and restarts it. Returns the fetched bytes / the version's size."""
    servers = len(at.bench.servers)
    async with at.sources(1) as (source,):
        await at.run.join_channel(at.store, [source])
        offer = at.offer(at.run.version + 1)
        size = servers * at.store.object_bytes(offer.full)
        source.pace = size / TAKES_S
        source.dies_after = share * size
        what = f"pull version {offer.version}; its source dies at {share:.0%}, and is back after {DOWN_S:g} s"
        await at.run.request_update(at.run.channel_request(offer))
        await _wait(at, source.died, f"{share:.0%} of version {offer.version} were fetched")
        await asyncio.sleep(DOWN_S)
        await source.stop()
        await asyncio.sleep(DOWN_S)
        await source.start()
        await at.run.is_live(offer, what)
        await at.serves(offer, what)
        fetched = source.sent(offer.full) / size
    if fetched > MOST:
        raise GuaranteeError(
            f"{fetched:.2f} times the bytes of version {offer.version} were fetched in all",
            f"at most {MOST:g} times: a transfer goes on by Range where it ended",
            what,
        )
    return fetched


async def _wait(at: StoreBench, event: asyncio.Event, what: str) -> None:
    limit = at.run.live_within_s
    try:
        async with asyncio.timeout(limit):
            await event.wait()
    except TimeoutError as error:
        raise GuaranteeError(f"it took more than {limit:g} s until {what}", "a transfer", what) from error


async def _hangs(at: StoreBench, fault: Fault) -> None:
    """Serves a version from a hanging source and a good one, to following servers."""
    async with at.sources(2) as (hung, good):
        offer = at.offer(at.run.version + 1)
        _hang(at, hung, fault, offer.version)
        good.after = hung.met
        await at.run.join_channel(at.store, [hung, good], follow=True, min_bytes_per_s=LEAST)
        at.store.announce(offer)
        what = f"follow two sources, and sign version {offer.version} as the latest; at one {fault.what}"
        await at.run.is_live(offer, what)
        await at.serves(offer, what)


def _hang(at: StoreBench, source: Source, fault: Fault, version: int) -> None:
    source.fault = fault
    for path in (latest_path(at.store.run), manifest_path(at.store.run, version)):
        source.faults[path] = fault
