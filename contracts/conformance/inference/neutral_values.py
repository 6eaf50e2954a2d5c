"""Values of generation fields that ask for nothing, which every server takes. G6 sends them."""

from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server

NOTHING: list[dict[str, Any]] = [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}]  # all tokens are kept


async def check_neutral_values(bench: Bench, server: Server) -> None:
    """Sends each value, whatever the server declares. Raises GuaranteeError for a refusal."""
    for field in NOTHING:
        await server.complete(bench.reference.prompt(5), 2, **field)
