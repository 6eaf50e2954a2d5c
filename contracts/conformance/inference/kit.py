"""Runs the checks of the inference contract against running servers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp

from contracts import CONTRACT_VERSIONS
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.declared import offered
from contracts.conformance.inference.guarantees import (
    g01_content,
    g02_in_flight,
    g03_stale_cache,
    g04_logprobs,
    g05_versions,
    g06_refusals,
    g07_failures,
    g08_endurance,
    g09_tokens,
    g10_authorization,
    g11_cancellation,
    g17_draws,
    g18_commitments,
    g19_sleep,
)
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.registered import (
    Checks,
    Part,
    check_covered,
    registered,
    with_registered,
)
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.speed import Speed, measure_speed
from contracts.conformance.parts import Parts, chosen
from contracts.conformance.verdicts import Guarantee, GuaranteeError, NotDeclaredError, Verdict
from contracts.weights import torch_dtype

REGISTERED = registered()
OWN: Checks = {
    Guarantee("G1", "content"): g01_content.PARTS,
    Guarantee("G2", "in flight"): g02_in_flight.PARTS,
    Guarantee("G3", "no stale cache"): g03_stale_cache.PARTS,
    Guarantee("G4", "log-probability semantics"): g04_logprobs.PARTS,
    Guarantee("G5", "honest versions"): g05_versions.PARTS,
    Guarantee("G6", "clean refusal"): g06_refusals.PARTS,
    Guarantee("G7", "nothing waits for ever"): g07_failures.PARTS,
    Guarantee("G8", "endurance"): g08_endurance.PARTS,
    Guarantee("G9", "tokens round-trip"): g09_tokens.PARTS,
    Guarantee("G10", "authorization"): g10_authorization.PARTS,
    Guarantee("G11", "cancellation"): g11_cancellation.PARTS,
    Guarantee("G17", "prescribed draws"): g17_draws.PARTS,
    Guarantee("G18", "commitments"): g18_commitments.PARTS,
    Guarantee("G19", "sleep"): g19_sleep.PARTS,
}
CHECKS = with_registered(OWN, REGISTERED)
CODES = [guarantee.code for guarantee in CHECKS]
KNOWN = " and ".join(map(str, CONTRACT_VERSIONS))
LONGEST_S = 1800.0  # timeout of one check
ANSWERS_WITHIN_S = 30.0
CONTEXTS = (2048, 1024, 512, 256, 128)  # tokens; the kit uses the first that the server accepts


def check_inference(
    urls: Sequence[str],
    reference: Reference | str,
    *,
    only: Sequence[str] | None = None,
    part: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> list[Verdict]:
    """Checks each guarantee, or those in `only`, on the servers at `urls`, and returns one verdict for each.

    The servers form one weight group. They must serve the model of `reference`, which may be a model
    directory. The kit takes them over, so no other client may use them meanwhile.

        part: the only part to check, of the one guarantee in `only`.
        settings: fields of `Settings`.
        tell: called with a line before and after each guarantee is checked.

    Raises ValueError for an unknown guarantee, part or setting, and for servers with channels if no installed
    package has guarantees of these. Raises ConnectionError for a server that does not respond, and OSError or
    ValueError for a model that cannot be loaded.
    """
    wanted = chosen(CHECKS, only, part)
    limits = Settings(**settings)
    reference = Reference(reference) if isinstance(reference, str) else reference

    async def run() -> list[Verdict]:
        # Many servers close idle connections after 5 s, and a POST sent at that moment is lost.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        timeout = aiohttp.ClientTimeout(total=limits.answer_s, sock_connect=10)
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(_see_closed_connections)
        session = aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=[trace])
        async with session as http:
            servers = [Server(http, url, limits.token) for url in urls]
            try:
                bench = await _bench(servers, reference, limits)
                if only is None:
                    check_covered(await bench.offered("capabilities"), REGISTERED)
            except (aiohttp.ClientError, GuaranteeError) as error:
                raise ConnectionError(f"the servers cannot be tried: {error!r}") from error
            if len(wanted) > 1 and any(guarantee.code == "G8" for guarantee in wanted):
                # Measured first, so that G8 also detects slowdowns that earlier checks cause.
                bench.speeds.extend([await _speed(server, reference) for server in bench.servers])
            return [await _told(guarantee, parts, bench, tell) for guarantee, parts in wanted.items()]

    return asyncio.run(run())


async def _see_closed_connections(*request: object) -> None:
    """Lets the event loop see which connections were closed while a reference was computed."""
    for _ in range(2):
        await asyncio.sleep(0)


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
    """Returns the maximum length of prompt and completion, at most the model's context."""
    model = (await server.contract()).model
    for context in sorted({min(most, reference.context) for most in CONTEXTS}, reverse=True):
        body = {"model": model, "prompt": reference.prompt(context - 1), "max_tokens": 1}
        status, answer = await server.post("/v1/completions", body)
        if status == 200:
            return context
    raise ConnectionError(f"{server.url} takes no prompt of {context - 1} token ids: {status} {answer}")


async def _speed(server: Server, reference: Reference) -> Speed | None:
    """Returns the server's speed, or None if measuring fails, whose cause one of the checks will report."""
    try:
        return await measure_speed(server, reference)
    except (aiohttp.ClientError, GuaranteeError):
        return None


async def _told(
    guarantee: Guarantee, parts: Parts[Part], bench: Bench, tell: Callable[[str], None]
) -> Verdict:
    tell(f"{guarantee.code} {guarantee.name} ...")
    verdict = await _verdict(guarantee, parts, bench)
    tell(f"{guarantee.code} {verdict.state}: {verdict.measured}")
    return verdict


async def _verdict(guarantee: Guarantee, parts: Parts[Part], bench: Bench) -> Verdict:
    started = time.monotonic()
    until = asyncio.get_running_loop().time() + LONGEST_S
    measured: list[str] = []
    missing: list[str] = []
    try:
        for part, check in parts.items():
            try:
                async with asyncio.timeout_at(until):
                    measured.append(await check(bench))
            except NotDeclaredError as error:
                missing.append(str(error))
            except Exception as error:  # any error that a broken server causes is a verdict
                return Verdict.of_failure(guarantee, part, error, time.monotonic() - started)
    finally:
        bench.end_run()
    return Verdict.of_parts(guarantee, parts, measured, missing, time.monotonic() - started)
