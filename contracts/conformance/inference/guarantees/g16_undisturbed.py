"""G16: a channel disturbs nothing: neither requests, nor groups, nor the next channel."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.stores.bench import declared_kinds
from contracts.conformance.inference.stores.beside_pulls import requests_beside_pulls
from contracts.conformance.inference.stores.refusals import check_refusals
from contracts.conformance.inference.stores.replaced import channels_and_groups


async def undisturbed(bench: Bench) -> str:
    """Generates while versions are pulled, refuses bad requests, and replaces channels by each other."""
    kinds = await declared_kinds(bench)
    beside = await requests_beside_pulls(bench) if "relay" in kinds else "no relay"
    refused = await check_refusals(bench, kinds)
    replaced = await channels_and_groups(bench, kinds)
    return f"{beside}; {refused} bad requests refused; {replaced}"
