"""G14: only a version that was signed is ever served. Whatever is tried, the old weights serve on."""

from contracts.conformance.inference.bench import Bench
from extensions.stored_weights.conformance.attacked import check_attacks, check_shared_attacks
from extensions.stored_weights.conformance.bad_latest import check_latest
from extensions.stored_weights.conformance.bad_transfers import check_transfers
from extensions.stored_weights.conformance.bench import declared_kinds


async def transfers(bench: Bench) -> str:
    """Serves valid versions from faulty sources."""
    await declared_kinds(bench, ["relay"])
    return f"{await check_transfers(bench)} faults of transfers, each healed by a source without it"


async def versions(bench: Bench) -> str:
    """Offers invalid versions over a relay."""
    await declared_kinds(bench, ["relay"])
    return f"{await check_attacks(bench)} bad versions"


async def latest(bench: Bench) -> str:
    """Serves invalid `latest.json` files."""
    await declared_kinds(bench, ["relay"])
    return f"{await check_latest(bench)} bad latest.json refused"


async def shared(bench: Bench) -> str:
    """Offers invalid versions in a shared directory."""
    await declared_kinds(bench, ["shared"])
    return f"{await check_shared_attacks(bench)} bad versions in a shared directory refused"


PARTS = {
    "transfers": transfers,
    "versions": versions,
    "latest": latest,
    "shared": shared,
}
