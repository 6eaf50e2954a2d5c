"""Channels that newer channels or groups replace, after which the old sources get no requests, for G16."""

import asyncio
from collections.abc import Sequence

from contracts.conformance.inference.bad_requests import BadRequest, check_refused
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import poll
from contracts.conformance.verdicts import GuaranteeError
from extensions.stored_weights.conformance.bench import StoreBench, new_store
from extensions.stored_weights.conformance.peer import POLL_S, UPDATE
from extensions.stored_weights.conformance.source import Source

QUIET_S = 10 * POLL_S  # time in which the source of a replaced channel must get no request


async def channels_and_groups(bench: Bench, kinds: Sequence[str]) -> str:
    """Replaces channels by channels, groups by channels, and channels by groups and other runs."""
    async with new_store(bench) as at:
        if "relay" in kinds:
            await _another_source(at)
            await _group_between(at)
            await _taken_over(at)
        else:
            await _group_after_shared(at)
    return "channels, groups and runs replaced each other, and the old sources were not asked again"


async def _follow(at: StoreBench, source: Source, what: str) -> None:
    await at.run.join_channel(at.store, [source], follow=True)
    offer = at.offer(at.run.version + 1)
    at.store.announce(offer)
    await at.run.is_live(offer, what)
    await at.serves(offer, what)


async def _another_source(at: StoreBench) -> None:
    """Joins a channel with another source, while the old one blocks a version."""
    async with at.sources(2) as (old, new):
        await _follow(at, old, "follow a source")
        old.open.clear()
        old.met.clear()
        held = at.offer(at.run.version + 1)
        at.store.announce(held)
        await _is_looked_at(at, old, held.version)
        new.open.set()
        await at.run.join_channel(at.store, [new], follow=True)
        what = "follow a source that holds a version up, then another source that has it"
        await at.run.is_live(held, what)
        await at.serves(held, what)
        await _is_quiet(at, old, what)
        old.open.set()


async def _is_looked_at(at: StoreBench, source: Source, version: int) -> None:
    async def met() -> bool:
        return source.met.is_set()

    limit = at.run.live_within_s
    if await poll(met, limit) is None:
        raise GuaranteeError(
            f"no file of version {version} was asked for within {limit:g} s",
            "a server that follows looks for a newer version every poll_s",
            f"follow, and sign version {version} as the latest",
        )


async def _is_quiet(at: StoreBench, source: Source, what: str) -> None:
    """Checks that the source gets no more requests, except those that are already on the way."""
    await asyncio.sleep(POLL_S)
    before = len(source.asked)
    await asyncio.sleep(QUIET_S)
    if after := source.asked[before:]:
        raise GuaranteeError(
            f"{len(after)} requests to a source of a channel that was replaced, such as {after[0].path}",
            "none: a channel that is replaced pulls no more",
            what,
        )


async def _group_between(at: StoreBench) -> None:
    async with at.sources(1) as (source,):
        await _follow(at, source, "follow a source after another")
        await at.run.join()
        version = at.run.version + 1
        weights = at.bench.weights(version)
        await at.run.publish(version, weights)
        await _in_a_group(at, version)
        what = f"join a group after a channel, and publish version {version}"
        for server in at.bench.servers:
            await at.bench.check_content(server, weights, version, what)
        unheard = at.offer(version + 1)
        at.store.announce(unheard)
        await _is_quiet(at, source, what)
        update = at.run.channel_request(unheard)
        for server in at.bench.servers:
            await check_refused(server, BadRequest(UPDATE, update, 409, "no_channel"))
        at.run.version = unheard.version
        await _follow(at, source, "follow a source after a group")
        for server in at.bench.servers:
            group = at.run.update_request(at.run.version + 1, weights)
            await check_refused(server, BadRequest(UPDATE, group, 409, "no_group"))
            update = at.run.channel_request(unheard, version=at.run.version + 1)
            await check_refused(server, BadRequest(UPDATE, update, 422, "invalid_request"))


async def _in_a_group(at: StoreBench, version: int) -> None:
    for server in at.bench.servers:
        contract = await server.contract()
        weights = contract.weights
        said = (contract.channel, weights.version, weights.digest, weights.run)
        if contract.group is None or said != (None, version, None, at.run.run):
            raise GuaranteeError(
                f"{server}: group {contract.group}, channel {contract.channel}, weights {weights}",
                f"a group, no channel, version {version} of this run, and no digest",
                "join a group after a channel, and make an update",
            )


async def _taken_over(at: StoreBench) -> None:
    """Lets another run take over with lower versions."""
    async with new_store(at.bench) as other, other.sources(1) as (source,), at.sources(1) as (old,):
        await _follow(at, old, "follow a source")
        await _follow(other, source, "another run takes over, and signs its version 1")
        await _is_quiet(at, old, "another run takes over a server that follows a source")
        unknown = await at.bench.servers[0].get(f"/weight_update/{at.run.version}")
        if unknown[0] != 404:
            raise GuaranteeError(
                f"GET /weight_update/{at.run.version}: {unknown}",
                "404 not_found: this run has no such version",
                "another run takes over a server that follows a source",
            )


async def _group_after_shared(at: StoreBench) -> None:
    await at.run.join_shared(at.store)
    await at.run.pull(at.offer(1), "read version 1")
    await at.run.join()
    await at.run.publish(2, at.bench.weights(2))
    await _in_a_group(at, 2)
