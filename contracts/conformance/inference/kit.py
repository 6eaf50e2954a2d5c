"""Runs the checks of the inference contract against servers that are up."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from contracts import CONTRACT_VERSION
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.g01_content import content
from contracts.conformance.inference.g02_in_flight import in_flight
from contracts.conformance.inference.g03_stale_cache import stale_cache
from contracts.conformance.inference.g04_logprobs import logprobs
from contracts.conformance.inference.g05_versions import versions
from contracts.conformance.inference.g06_refusals import refusals
from contracts.conformance.inference.g07_failures import failures
from contracts.conformance.inference.g08_endurance import endurance
from contracts.conformance.inference.g09_tokens import tokens
from contracts.conformance.inference.g10_strangers import strangers
from contracts.conformance.inference.g11_cancellation import cancellation
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import Guarantee, Verdict

CHECKS: dict[Guarantee, Callable[[Bench], Awaitable[str]]] = {
    Guarantee("G1", "content"): content,
    Guarantee("G2", "in flight"): in_flight,
    Guarantee("G3", "no stale cache"): stale_cache,
    Guarantee("G4", "log-probability semantics"): logprobs,
    Guarantee("G5", "honest versions"): versions,
    Guarantee("G6", "clean refusal"): refusals,
    Guarantee("G7", "nothing waits for ever"): failures,
    Guarantee("G8", "endurance"): endurance,
    Guarantee("G9", "tokens round-trip"): tokens,
    Guarantee("G10", "strangers"): strangers,
    Guarantee("G11", "cancellation"): cancellation,
}
CODES = [guarantee.code for guarantee in CHECKS]
LONGEST_S = 300.0  # of one check but G8; a server that answers too slowly for it keeps no guarantee


def check_inference(
    urls: Sequence[str],
    reference: Reference | str,
    *,
    only: Sequence[str] | None = None,
    token: str | None = None,
    updates: int = 50,
    tolerance: float = 1e-3,
    timeout_s: float = 2.0,
    grace_s: float = 10.0,
    tell: Callable[[Guarantee], None] = lambda guarantee: None,
) -> list[Verdict]:
    """Each guarantee, or those of `only`, on the servers at `urls`. They form one weight group and serve
    the model that `reference` is, or is a directory of. They are taken over; nobody else may use them.

    updates: of G8. tolerance: nats by which a log-probability may be off; 1e-3 suits float32, a server
    that computes in bfloat16 needs some tenths. timeout_s: that updates and joins ask for, grace_s: what a
    server may take beyond it (10 by the contract). `tell` hears of each guarantee before it is checked.
    Raises ValueError for an unknown guarantee, OSError or ValueError for a model that cannot be loaded,
    ConnectionError for a server that is not there.
    """
    if unknown := set(only or ()) - set(CODES):
        raise ValueError(f"no guarantee {unknown.pop()}: they are {', '.join(CODES)}")
    reference = Reference(reference) if isinstance(reference, str) else reference

    async def run() -> list[Verdict]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            servers = [Server(http, url, token) for url in urls]
            for server in servers:
                await _present(server)
            bench = Bench(servers, reference, tolerance, updates, timeout_s, grace_s, token)
            wanted = [guarantee for guarantee in CHECKS if guarantee.code in (only or CODES)]
            return [await _verdict(guarantee, bench, tell) for guarantee in wanted]

    return asyncio.run(run())


async def _present(server: Server) -> None:
    try:
        status, body = await server.get("/health")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ConnectionError(f"no server at {server.url}: {error}") from error
    if status != 200:
        raise ConnectionError(f"{server.url}/health is {status} {body}: wait until it is ready")
    status, body = await server.get("/contract")
    if status == 401:
        raise ConnectionError(f"{server.url} wants its bearer token: give it as --token")
    if status != 200 or body.get("contract") != CONTRACT_VERSION:
        raise ConnectionError(
            f"{server.url}/contract is {status} {str(body)[:200]}: version {CONTRACT_VERSION} is checked here"
        )


async def _verdict(guarantee: Guarantee, bench: Bench, tell: Callable[[Guarantee], None]) -> Verdict:
    tell(guarantee)
    started = time.monotonic()
    limit = LONGEST_S * max(1, bench.updates / 50)
    try:
        async with asyncio.timeout(limit):
            measured = await CHECKS[guarantee](bench)
    except Exception as error:  # whatever a broken server causes is its verdict
        return Verdict.of_failure(guarantee, error, time.monotonic() - started)
    return Verdict(guarantee, "pass", measured, time.monotonic() - started)
