"""Valid versions from faulty sources, for G14. They must become live only if another source is correct."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.attacked import expect_refused, expect_still
from extensions.stored_weights.conformance.bench import StoreBench, new_store
from extensions.stored_weights.conformance.faults import (
    CUT_OFF,
    FAILING,
    LONGER,
    MISSING,
    ONE_BIT,
    TRUNCATED,
    WRONG_LENGTH,
    Fault,
    another,
    redirect,
)
from extensions.stored_weights.conformance.peer import RETRIES_S
from extensions.stored_weights.conformance.source import Source
from extensions.stored_weights.conformance.store import Offer
from extensions.stored_weights.store.layout import object_path


async def check_transfers(bench: Bench) -> int:
    """Tries each fault at one of two sources, then at both. Returns the number of faults."""
    async with new_store(bench) as at, at.sources(1) as (elsewhere,):
        other = at.store.put_object(b"another file" * 400)
        faults = [
            ONE_BIT,
            TRUNCATED,
            CUT_OFF,
            LONGER,
            WRONG_LENGTH,
            MISSING,
            FAILING,
            another(at.store.path(object_path(other)).read_bytes()),
            redirect(elsewhere.url),
        ]
        for fault in faults:
            async with at.sources(2) as (bad, good):
                live = await _healed(at, fault, bad, good)
                await _alone(at, fault, [bad, good], live)
                await _again(at, fault, [bad, good])
        if elsewhere.asked:
            raise GuaranteeError(
                f"{len(elsewhere.asked)} requests at the address to which a source redirected",
                "none: no redirect is followed",
                f"answer 302 to GET {elsewhere.asked[0].path}",
            )
        return len(faults)


async def _healed(at: StoreBench, fault: Fault, bad: Source, good: Source) -> Offer:
    """Serves a version from a bad and a good source. It must become live. Returns it."""
    bad.fault = fault
    good.after = bad.met  # so that the bad source certainly gets a request
    await at.run.join_channel(at.store, [bad, good])
    offer = at.offer(at.run.version + 1)
    what = f"pull version {offer.version}: {fault.what} at one of two sources"
    await at.run.pull(offer, what)
    await at.serves(offer, what)
    return offer


async def _alone(at: StoreBench, fault: Fault, sources: list[Source], live: Offer) -> None:
    """Serves the next version from sources that all have the fault. It must not become live."""
    for source in sources:
        source.fault = fault
    offer = at.offer(live.version + 1)
    what = f"version {offer.version}: {fault.what} at every source"
    await at.run.request_update(at.run.channel_request(offer, timeout_s=RETRIES_S))
    await expect_refused(at, offer, what, {"failed", "skipped"})
    await expect_still(at, live, what)


async def _again(at: StoreBench, fault: Fault, sources: list[Source]) -> None:
    for source in sources:
        source.fault = None
    offer = at.offer(at.run.version + 2)
    what = f"pull version {offer.version}, served well after one of which {fault.what} at every source"
    await at.run.pull(offer, what)
