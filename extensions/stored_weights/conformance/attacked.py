"""Offers versions that must not be served, and checks the servers' reaction, for G14."""

from collections.abc import Collection, Sequence

from contracts.conformance.inference.bench import FEW, Bench
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.attacks import ESCAPED, Attack, attacks
from extensions.stored_weights.conformance.bench import (
    StoreBench,
    declared_kinds,
    delta_dtype,
    new_store,
)
from extensions.stored_weights.conformance.delta_attacks import delta_attacks
from extensions.stored_weights.conformance.peer import RETRIES_S
from extensions.stored_weights.conformance.store import Offer
from extensions.stored_weights.conformance.variants import in_dtype

PROVEN = ("signature", "manifest", "digest")  # prefixes of the errors of an invalid version


async def check_attacks(bench: Bench) -> int:
    """Offers every attack over a relay. Returns their number."""
    await declared_kinds(bench, ["relay"])
    async with new_store(bench) as at, at.sources(1) as sources:
        await at.run.join_channel(at.store, sources)
        await _good(at, "pull version 1")
        tried = await _check(at, attacks())
        if dtype := await delta_dtype(bench):
            version = at.run.version + 1
            base = at.offer(version, in_dtype(at.fresh(version), dtype))
            await at.run.pull(base, f"pull version {version} in {dtype}")
            for attack in delta_attacks(base):
                # The base stays the newest version of the servers.
                await _refused(at, attack, base)
                tried += 1
            await _good(at, "refuse bad deltas, then pull a good version")
    return tried


async def check_shared_attacks(bench: Bench) -> int:
    """Offers the attacks that apply to a shared store, and a truncated file."""
    await declared_kinds(bench, ["shared"])
    async with new_store(bench) as at:
        await at.run.join_shared(at.store)
        await _good(at, "read version 1")
        cut_off = Attack("a file that is cut off", _cut_off)
        return await _check(at, [*(one for one in attacks() if not one.relay_only), cut_off])


async def _check(at: StoreBench, tried: Sequence[Attack]) -> int:
    for attack in tried:
        await _refused(at, attack, await _good(at, "pull a good version after a bad one"))
    await _good(at, "pull a good version after bad ones")
    return len(tried)


async def _good(at: StoreBench, what: str) -> Offer:
    """Makes the servers pull the next version, which must become live, and returns it."""
    offer = at.offer(_next(at))
    await at.run.pull(offer, what)
    return offer


def _next(at: StoreBench) -> int:
    return max([at.run.version, *at.weights]) + 1


async def _refused(at: StoreBench, attack: Attack, live: Offer) -> None:
    """Offers one attack, and checks that the live version stays in use."""
    version = _next(at)
    offer = attack.make(at, version)
    what = f"version {version}: {attack.what}"
    limit = {"timeout_s": RETRIES_S} if attack.may_pass else {}
    await at.run.request_update(at.run.channel_request(offer, **limit))
    await at.run.ends(offer)
    if at.store.path(ESCAPED).exists():
        raise GuaranteeError(
            "a file was written outside the server's own directory",
            "the name is refused",
            f"pull {what}",
        )
    await expect_refused(at, offer, what, {attack.ends})
    await expect_still(at, live, what)


async def expect_refused(at: StoreBench, offer: Offer, what: str, states: Collection[str]) -> None:
    """Checks that the version ended in one of `states`, with an error and without touching weights.

    The error of a skipped version must begin with one of `PROVEN`.
    """
    for server, status in zip(at.bench.servers, await at.run.ends(offer), strict=True):
        word = (status.error or "").partition(":")[0]
        said = word in PROVEN if status.state == "skipped" else bool(word)
        if status.state not in states or status.touched or not said:
            raise GuaranteeError(
                f"{server}: {what} ended as {status.model_dump()}",
                f"{' or '.join(sorted(states))}, with an error that says why, and nothing touched; that of a "
                f"skipped one begins with {', '.join(PROVEN)}",
                f"pull {what}",
            )


async def expect_still(at: StoreBench, live: Offer, what: str) -> None:
    """Checks that the servers still serve `live`, and report it."""
    for server in at.bench.servers:
        weights = (await server.contract()).weights
        said = (weights.version, weights.state, weights.digest)
        health, _ = await server.get("/health")
        if said != (live.version, "live", live.digest) or health != 200:
            raise GuaranteeError(
                f"{server}: /contract says {weights.model_dump()} after {what}; /health: {health}",
                f"version {live.version}, live, with its own digest, and ready",
                f"pull {what}",
            )
        sample = await server.complete(at.bench.reference.prompt(8, seed=live.version), FEW, temperature=0)
        at.bench.check_label(sample, live.version, f"pull {what}")
        at.bench.compare(sample, live.weights, f"pull {what}, then complete {sample.prompt_token_ids}")


def _cut_off(at: StoreBench, version: int) -> Offer:
    offer = at.offer(version)
    path = at.store.path(f"objects/{offer.full[0]}")
    path.write_bytes(path.read_bytes()[:-1])
    return offer
