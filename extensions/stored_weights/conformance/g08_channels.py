"""The weight channels of G8: pulls, joins and refused versions must not leak resources."""

import itertools
import time

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.growth import Growth
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError
from extensions.stored_weights.conformance.bench import StoreBench, new_store
from extensions.stored_weights.conformance.faults import ONE_BIT
from extensions.stored_weights.conformance.source import Source

PULLS = 16  # versions in a round
THOROUGH_PULLS = 100
CHANNELS = 8  # channels in a round, each with one version
THOROUGH_CHANNELS = 60
BAD = 4  # one in so many versions has a fault at its source


async def channels(bench: Bench) -> str:
    """Pulls many versions, then joins many channels, and checks the growth of resources."""
    bench.end_run()
    if "relay" not in await bench.offered("capabilities"):
        raise NotDeclaredError("relay is not offered")
    pulls = THOROUGH_PULLS if bench.settings.thorough else PULLS
    joins = THOROUGH_CHANNELS if bench.settings.thorough else CHANNELS
    growth = Growth(bench)
    versions = itertools.count(1)
    async with new_store(bench) as at, at.sources(1) as (source,):
        await at.run.join_channel(at.store, [source])

        async def pulled() -> float:
            return await _pulled(at, source, next(versions))

        async def joined() -> float:
            began = time.monotonic()
            await at.run.join_channel(at.store, [source], follow=True)
            seconds = time.monotonic() - began
            offer = at.offer(next(versions))
            at.store.announce(offer)
            await at.run.is_live(offer, "join a channel that follows")
            return seconds

        await growth.check_flat(pulled, pulls, "versions were pulled")
        await growth.check_flat(joined, joins, "channels were joined")
    return f"{next(versions) - 1} versions over channels"


async def _pulled(at: StoreBench, source: Source, version: int) -> float:
    """Makes the servers pull a version, which may be bad. Returns the seconds that it took."""
    offer = at.offer(version)
    began = time.monotonic()
    if version % BAD:
        await at.run.pull(offer, f"pull version {version}")
        return time.monotonic() - began
    source.fault = ONE_BIT
    await at.run.request_update(at.run.channel_request(offer))
    for server, status in zip(at.bench.servers, await at.run.ends(offer), strict=True):
        if status.state == "live":
            raise GuaranteeError(f"{server}: {status}", "not live", f"pull a bad version {version}")
    source.fault = None
    return time.monotonic() - began
