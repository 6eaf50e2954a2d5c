"""Values of generation fields without effect, which every server must accept. G6 sends them."""

from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.server import Server

NOTHING: list[dict[str, Any]] = [{"top_p": 1}, {"top_k": 0}, {"top_k": -1}]  # they exclude no token


async def check_neutral_values(bench: Bench, server: Server) -> None:
    """Sends each value, independently of capabilities. Raises GuaranteeError if one is refused."""
    for field in NOTHING:
        await server.complete(bench.reference.prompt(5), 2, **field)
