"""Checks that a stream's chunks arrive while it is generated, and together form the complete response.

G9 calls it. Chunks may come in bursts of any size, except nearly all of a long completion at once.
"""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.samples import streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

FIRST_TRY = 96  # tokens
ENOUGH = 48  # tokens that a stream needs for a verdict; many streams end earlier
LATE = 0.9  # share of the stream's duration
TRIES = 5  # streams with enough tokens
TIMELY = 2  # how many of them must arrive in time; on a busy machine, one may by chance
MOST = 16  # streams in total


async def check_arrival(bench: Bench, server: Server, **fields: Any) -> float:
    """Checks that half of a stream's tokens arrive clearly before its end. fields: added to the request.

    If a stream is late, repeats it with more tokens, because this machine may have been busy, or the server
    may send large bursts. Returns the share of the duration after which half of the tokens had arrived.
    """
    tokens = FIRST_TRY
    found: list[float] = []
    for attempt in range(MOST):
        tokens = min(tokens, bench.context - 32)
        count, when = await _half_arrived(bench, server, tokens, attempt, fields)
        if count < ENOUGH:
            continue
        found.append(when)
        if sum(when < LATE for when in found) == TIMELY:
            return min(found)
        if len(found) == TRIES:
            raise GuaranteeError(
                f"half of the {count} tokens of a stream had arrived after {max(found):.0%} of its duration",
                "chunks are sent while the rest is generated, not at the end",
                f"{server}: stream {count} tokens with {fields} and look when the chunks arrive",
            )
        if when >= LATE:
            tokens *= 2
    return min(found, default=0.0)  # too few completions are long enough for a verdict


async def _half_arrived(
    bench: Bench, server: Server, tokens: int, attempt: int, fields: dict[str, Any]
) -> tuple[int, float]:
    """Returns the number of a stream's tokens, and the share of its duration after which half had arrived."""
    prompt = bench.reference.prompt(6, seed=attempt)
    body = {"prompt": prompt, "max_tokens": tokens, "logprobs": True, "temperature": 1} | fields
    started = asyncio.get_running_loop().time()
    chunks = await server.timed_stream("/v1/completions", body)
    ended = asyncio.get_running_loop().time()
    streamed([chunk for _, chunk in chunks])
    arrived = [
        at for at, chunk in chunks for choice in chunk["choices"] for _ in choice.get("token_ids") or []
    ]
    if not arrived:
        return 0, 1.0
    return len(arrived), (arrived[len(arrived) // 2] - started) / max(ended - started, 1e-9)
