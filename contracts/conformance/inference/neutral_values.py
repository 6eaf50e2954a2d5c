"""Values of generation fields that have no effect, which every server accepts. G6 sends them."""

from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server

NOTHING: list[dict[str, Any]] = [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}]  # they exclude no token


async def check_neutral_values(bench: Bench, server: Server) -> None:
    """Sends each value, whatever the server declares. Raises GuaranteeError if one is refused."""
    for field in NOTHING:
        await server.complete(bench.reference.prompt(5), 2, **field)
