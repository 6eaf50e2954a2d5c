"""G14: only a version that was signed is ever served. Whatever is tried, the old weights serve on."""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.stores.attacked import check_attacks, check_shared_attacks
from contracts.conformance.inference.stores.bad_latest import check_latest
from contracts.conformance.inference.stores.bad_transfers import check_transfers
from contracts.conformance.inference.stores.bench import declared_kinds


async def integrity(bench: Bench) -> str:
    """Offers bad versions, serves right ones badly, and checks that only right ones become live."""
    kinds = await declared_kinds(bench)
    tried = transfers = latest = 0
    if "relay" in kinds:
        transfers = await check_transfers(bench)
        tried = await check_attacks(bench)
        latest = await check_latest(bench)
    if "shared" in kinds:
        tried += await check_shared_attacks(bench)
    return (
        f"{tried} bad versions and {latest} bad latest.json refused; {transfers} faults of transfers, each "
        f"healed by a source without it ({', '.join(kinds)})"
    )
