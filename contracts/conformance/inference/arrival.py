"""A stream's chunks arrive while it is generated, and together they are the whole answer.

It is called by G9. Bursts are allowed, of any size but all of a long completion.
"""

import asyncio

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.samples import streamed
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

FIRST_TRY = 96  # tokens
LATE = 0.9  # of the whole duration
TRIES = 4


async def check_arrival(bench: Bench, server: Server) -> float:
    """Checks that half of a stream's tokens arrive clearly before its end.

    One that does not is asked for again and made longer: this machine may have been busy, or the server may
    send large bursts. Returns the part of the duration after which half of the tokens were there.
    """
    tokens = FIRST_TRY
    when = 1.0
    for attempt in range(TRIES):
        tokens = min(tokens, bench.context - 32)
        when = await _half_arrived(bench, server, tokens, attempt)
        if when < LATE:
            return when
        tokens *= 2
    raise GuaranteeError(
        f"half of the {tokens // 2} tokens of a stream had arrived after {when:.0%} of its duration",
        "chunks are sent while the rest is generated, not at the end",
        f"{server}: stream a completion of {tokens // 2} tokens and look when its chunks arrive",
    )


async def _half_arrived(bench: Bench, server: Server, tokens: int, attempt: int) -> float:
    """Returns the part of the duration after which half of the tokens had arrived."""
    prompt = bench.reference.prompt(6, seed=attempt)
    body = {"prompt": prompt, "max_tokens": tokens, "logprobs": True, "temperature": 1}
    started = asyncio.get_running_loop().time()
    chunks = await server.timed_stream("/v1/completions", body)
    ended = asyncio.get_running_loop().time()
    streamed([chunk for _, chunk in chunks])
    arrived = [
        at for at, chunk in chunks for choice in chunk["choices"] for _ in choice.get("token_ids") or []
    ]
    return (arrived[len(arrived) // 2] - started) / max(ended - started, 1e-9)
