"""Runs the checks of the inference contract against running servers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from contracts import CONTRACT_VERSIONS
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.declared import offered
from contracts.conformance.inference.guarantees.g01_content import content
from contracts.conformance.inference.guarantees.g02_in_flight import in_flight
from contracts.conformance.inference.guarantees.g03_stale_cache import stale_cache
from contracts.conformance.inference.guarantees.g04_logprobs import logprobs
from contracts.conformance.inference.guarantees.g05_versions import versions
from contracts.conformance.inference.guarantees.g06_refusals import refusals
from contracts.conformance.inference.guarantees.g07_failures import failures
from contracts.conformance.inference.guarantees.g08_endurance import endurance
from contracts.conformance.inference.guarantees.g09_tokens import tokens
from contracts.conformance.inference.guarantees.g10_authorization import authorization
from contracts.conformance.inference.guarantees.g11_cancellation import cancellation
from contracts.conformance.inference.guarantees.g12_store import store_content
from contracts.conformance.inference.guarantees.g13_skipping import skipping
from contracts.conformance.inference.guarantees.g14_integrity import integrity
from contracts.conformance.inference.guarantees.g15_resume import resumption
from contracts.conformance.inference.guarantees.g16_undisturbed import undisturbed
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.speed import Speed, measure_speed
from contracts.conformance.verdicts import Guarantee, GuaranteeError, Verdict
from contracts.weights import torch_dtype

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
    Guarantee("G10", "authorization"): authorization,
    Guarantee("G11", "cancellation"): cancellation,
    Guarantee("G12", "store content"): store_content,
    Guarantee("G13", "skipping"): skipping,
    Guarantee("G14", "integrity"): integrity,
    Guarantee("G15", "resume"): resumption,
    Guarantee("G16", "undisturbed"): undisturbed,
}
CODES = [guarantee.code for guarantee in CHECKS]
KNOWN = " and ".join(map(str, CONTRACT_VERSIONS))
LONGEST_S = 1800.0  # the longest time that one check may take
ANSWERS_WITHIN_S = 30.0
CONTEXTS = (2048, 1024, 512, 256, 128)  # tokens; the kit uses the first that the server accepts


def check_inference(
    urls: Sequence[str],
    reference: Reference | str,
    *,
    only: Sequence[str] | None = None,
    tell: Callable[[Guarantee], None] = lambda guarantee: None,
    **settings: Any,
) -> list[Verdict]:
    """Checks each guarantee, or those in `only`, on the servers at `urls`, and returns one verdict for each.

    The servers form one weight group. They must serve the model of `reference`, which may be a model
    directory. The kit takes them over, so no other client may use them meanwhile.

        settings: the fields of `Settings`.
        tell: called with each guarantee before it is checked.

    Raises ValueError for an unknown guarantee or setting, and ConnectionError for a server that does not
    respond. Raises OSError or ValueError for a model that cannot be loaded.
    """
    if unknown := set(only or ()) - set(CODES):
        raise ValueError(f"no guarantee {unknown.pop()}: they are {', '.join(CODES)}")
    chosen = Settings(**settings)
    reference = Reference(reference) if isinstance(reference, str) else reference

    async def run() -> list[Verdict]:
        # Many servers close an idle connection after 5 s; a POST sent at that moment is lost.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        timeout = aiohttp.ClientTimeout(total=chosen.answer_s, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
            wanted = [guarantee for guarantee in CHECKS if guarantee.code in (only or CODES)]
            servers = [Server(http, url, chosen.token) for url in urls]
            try:
                bench = await _bench(servers, reference, chosen)
            except (aiohttp.ClientError, GuaranteeError) as error:
                raise ConnectionError(f"the servers cannot be tried: {error!r}") from error
            if len(wanted) > 1 and any(CHECKS[guarantee] is endurance for guarantee in wanted):
                # Measured first, so that G8 also detects slowdowns that earlier checks cause.
                bench.speeds.extend([await _speed(server, reference) for server in bench.servers])
            return [await _verdict(guarantee, bench, tell) for guarantee in wanted]

    return asyncio.run(run())


async def _bench(servers: list[Server], reference: Reference, settings: Settings) -> Bench:
    for server in servers:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await _present(server)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"no server at {server.url}: {error or 'no answer'}") from error
    accepted = await offered(servers, "accepts_dtypes")
    dtype = settings.dtype or ("float32" if "float32" in accepted else accepted[0])
    context = min([await _context(server, reference) for server in servers])
    return Bench(servers, reference, settings, torch_dtype(dtype), context)


async def _present(server: Server) -> None:
    status, body = await server.get("/health")
    if status != 200:
        raise ConnectionError(f"{server.url}/health is {status} {body}: wait until it is ready")
    status, body = await server.get("/contract")
    if status == 401:
        raise ConnectionError(
            f"{server.url} wants its bearer token: set PIPELINERL_TOKEN, or give --token-file"
        )
    if status != 200 or body.get("contract") not in CONTRACT_VERSIONS:
        raise ConnectionError(
            f"{server.url}/contract is {status} {str(body)[:200]}: versions {KNOWN} are checked here"
        )


async def _context(server: Server, reference: Reference) -> int:
    """Returns the tokens that prompt and completion may have together, at most the model's context."""
    model = (await server.contract()).model
    for context in sorted({min(most, reference.context) for most in CONTEXTS}, reverse=True):
        body = {"model": model, "prompt": reference.prompt(context - 1), "max_tokens": 1}
        status, answer = await server.post("/v1/completions", body)
        if status == 200:
            return context
    raise ConnectionError(f"{server.url} takes no prompt of {context - 1} token ids: {status} {answer}")


async def _speed(server: Server, reference: Reference) -> Speed | None:
    """Returns the server's speed, or None if measuring it fails: one of the checks will report the cause."""
    try:
        return await measure_speed(server, reference)
    except (aiohttp.ClientError, GuaranteeError):
        return None


async def _verdict(guarantee: Guarantee, bench: Bench, tell: Callable[[Guarantee], None]) -> Verdict:
    tell(guarantee)
    started = time.monotonic()
    try:
        async with asyncio.timeout(LONGEST_S):
            measured = await CHECKS[guarantee](bench)
    except Exception as error:  # any error that a broken server causes is a verdict
        return Verdict.of_failure(guarantee, error, time.monotonic() - started)
    return Verdict(guarantee, "pass", measured, time.monotonic() - started)
