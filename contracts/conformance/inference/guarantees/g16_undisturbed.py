"""G16: a channel disturbs nothing: neither requests, nor groups, nor the next channel."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.stores.bench import declared_kinds
from contracts.conformance.inference.stores.beside_pulls import requests_beside_pulls
from contracts.conformance.inference.stores.refusals import check_refusals
from contracts.conformance.inference.stores.replaced import channels_and_groups


async def pulls(bench: Bench) -> str:
    """Generates while versions are pulled."""
    await declared_kinds(bench, ["relay"])
    return await requests_beside_pulls(bench)


async def refusals(bench: Bench) -> str:
    """Sends bad requests for channels."""
    return f"{await check_refusals(bench, await declared_kinds(bench))} bad requests refused"


async def replaced(bench: Bench) -> str:
    """Replaces channels by channels, groups and other runs."""
    return await channels_and_groups(bench, await declared_kinds(bench))


PARTS = {
    "pulls": pulls,
    "refusals": refusals,
    "replaced": replaced,
}
