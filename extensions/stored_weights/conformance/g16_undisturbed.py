"""G16: a channel disturbs nothing: neither requests, nor groups, nor the next channel."""

from contracts.conformance.inference.bench import Bench
from extensions.stored_weights.conformance.bench import declared_kinds
from extensions.stored_weights.conformance.beside_pulls import requests_beside_pulls
from extensions.stored_weights.conformance.refusals import check_refusals
from extensions.stored_weights.conformance.replaced import channels_and_groups


async def pulls(bench: Bench) -> str:
    """Sends requests while versions are pulled."""
    await declared_kinds(bench, ["relay"])
    return await requests_beside_pulls(bench)


async def refusals(bench: Bench) -> str:
    """Sends invalid requests about channels."""
    return f"{await check_refusals(bench, await declared_kinds(bench))} bad requests refused"


async def replaced(bench: Bench) -> str:
    """Replaces channels by channels, groups and other runs."""
    return await channels_and_groups(bench, await declared_kinds(bench))


PARTS = {
    "pulls": pulls,
    "refusals": refusals,
    "replaced": replaced,
}
