"""G13: a server that follows a store serves the newest version that it can, and says which it skipped."""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server, poll
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import StoreBench, declared_kinds, new_store
from extensions.stored_weights.conformance.faults import SILENT
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import Offer
from extensions.stored_weights.conformance.watch import watching
from extensions.stored_weights.store.layout import object_path

HELD = 2  # version of which only one file is sent
NEWEST = 7
IN_A_ROW = 8  # versions in quick succession
APART_S = 0.05
ENDS_OF_SKIPPED = {"live", "skipped"}
UNSEEN = 404  # status of a version that was replaced before the server polled


async def skipping(bench: Bench) -> str:
    """Offers versions faster than they can be pulled, and checks labels, contents and reports."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at, at.sources(1) as (source,):
        await at.run.join_channel(at.store, [source], follow=True)
        first = at.offer(1)
        at.store.announce(first)
        await at.run.is_live(first, "follow, and sign version 1 as the latest")
        async with watching(at) as watch:
            await _superseded(at, source)
            skipped = await _in_a_row(at)
        worst = watch.check(f"follow the versions 1 to {at.run.version}")
    row = IN_A_ROW * len(bench.servers)
    return (
        f"version {HELD} was skipped for {NEWEST}, {skipped} of {row} in a row; {len(watch.answers)} "
        f"answers beside them, off by {worst:.0e}"
    )


PARTS = {"following": skipping}


async def _superseded(at: StoreBench, source: Source) -> None:
    """Offers a version of which only one file is sent, then a newer one."""
    held = at.offer(HELD)
    newest = at.offer(NEWEST)
    for name in _all_but_the_smallest(at, held):
        source.faults[object_path(name)] = SILENT
    at.store.announce(held)
    if await poll(lambda: _asked(at, source, held), at.run.live_within_s) is None:
        raise GuaranteeError(
            f"no file of version {HELD} was asked for within {at.run.live_within_s:g} s",
            "a server that follows looks for a newer version every poll_s",
            f"follow, and sign version {HELD} as the latest",
        )
    at.store.announce(newest)
    what = f"sign version {HELD}, send only one of its files, then sign version {NEWEST}"
    await at.run.is_live(newest, what)
    await at.serves(newest, what)
    for server in at.bench.servers:
        status = await at.run.end_of(server, HELD)
        if status.state != "skipped" or status.touched or not status.error:
            raise GuaranteeError(
                f"{server}: version {HELD} ended as {status.model_dump()}",
                "skipped, with an error that says why, and nothing touched",
                what,
            )


def _all_but_the_smallest(at: StoreBench, offer: Offer) -> list[str]:
    return sorted(offer.full, key=lambda name: at.store.object_bytes([name]))[1:]


async def _asked(at: StoreBench, source: Source, offer: Offer) -> bool:
    return source.object_requests(_all_but_the_smallest(at, offer)) > 0


async def _in_a_row(at: StoreBench) -> int:
    """Offers several versions quickly. Returns the number that did not become live."""
    offers = [at.offer(NEWEST + 1 + i) for i in range(IN_A_ROW)]
    for offer in offers:
        at.store.announce(offer)
        await asyncio.sleep(APART_S)
    what = f"sign {IN_A_ROW} versions, {APART_S:g} s apart"
    await at.run.is_live(offers[-1], what)
    await at.serves(offers[-1], what)
    ends = [await _end(server, offer, what) for server in at.bench.servers for offer in offers]
    return sum(end != "live" for end in ends)


async def _end(server: Server, offer: Offer, what: str) -> str:
    """Returns the final state of a version after which there was a newer one."""
    status, body = await server.get(f"/weight_update/{offer.version}")
    state = str(body.get("state"))
    if status == UNSEEN or state in ENDS_OF_SKIPPED:
        return state
    raise GuaranteeError(
        f"{server}: version {offer.version}: {status} {body}",
        f"live, skipped, or 404 for one that was not seen, after version {offer.version + 1} and others",
        what,
    )
