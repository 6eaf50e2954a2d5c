"""Checks that each request needs the token, and that the server proves its knowledge of it. G10 calls it."""

import asyncio
from urllib.parse import urlsplit

import aiohttp

from contracts.challenge import address_of, is_proof, new_challenge
from contracts.conformance.inference.http_client import Answer
from contracts.conformance.inference.raw_http import exchanged
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError


async def asked(
    server: Server, method: str, path: str, headers: dict[str, str], body: bytes = b"{}"
) -> Answer:
    """Sends a request without a token, unless `headers` contain it, and returns the response."""
    body = body if method in ("POST", "PUT") else b""
    sent = {"Content-Type": "application/json", "Content-Length": str(len(body))} | headers
    return await exchanged(Server(server.http, server.url, None), method, path, sent, body)


async def check_each_request(server: Server) -> None:
    """Checks that each request needs the token, even on a connection that has sent it before."""
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector, timeout=server.http.timeout) as one:
        for headers, expected in ((server.headers, 200), ({}, 401), (server.headers, 200)):
            async with one.get(f"{server.url}/contract", headers=headers) as answer:
                await answer.read()
                found = answer.status
            if found != expected:
                raise GuaranteeError(
                    f"GET /contract {'with' if headers else 'without'} the token: {found}",
                    f"{expected}: each request over one connection is looked at",
                    f"{server}: ask with the token, without it, and with it, over one connection",
                )


async def check_proofs(server: Server, token: str) -> None:
    """Checks the proofs for challenges, with any Host header."""
    at = await _address(server)
    challenges = [new_challenge(), new_challenge(), new_challenge()[:32], new_challenge() + new_challenge()]
    for challenge in challenges:
        for host in ({}, {"Host": "127.0.0.99:1"}):
            path = f"/health?challenge={challenge}"
            _, body = await asked(server, "GET", path, host)
            proof = str(body.get("proof"))
            address = str(body.get("address"))
            if not is_proof(proof, token, challenge, address) or at not in (None, address):
                raise GuaranteeError(
                    f"GET /health?challenge=...: proof {proof[:80]}, address {address}",
                    f"the HMAC by the token of this challenge and of {at or 'the address'}, its own",
                    f"curl '{server.url}{path}', and compare with contracts.challenge.proof_of",
                )


async def _address(server: Server) -> str | None:
    """Returns the address at which the server is reached, or None with TLS, because of possible proxies."""
    url = urlsplit(server.url)
    if url.scheme == "https":
        return None
    _, writer = await asyncio.open_connection(url.hostname, url.port or 80)
    host, port = writer.get_extra_info("peername")[:2]
    writer.close()
    return address_of(host, port)


async def check_malformed_challenges(server: Server) -> None:
    """Checks that malformed challenges are refused with 422 and get no proof."""
    challenge = new_challenge()
    long = challenge * 2
    for malformed in ("", "xyz", challenge[:31], challenge[:30] + "xy", long + "0", "0" * 1000):
        status, body = await asked(server, "GET", f"/health?challenge={malformed}", {})
        error = body.get("error")
        code = error.get("code") if isinstance(error, dict) else None
        if (status, code) != (422, "invalid_request") or "proof" in body:
            raise GuaranteeError(
                f"GET /health?challenge={malformed[:40]}: {status} {str(body)[:120]}",
                "422 invalid_request: a challenge has 32 to 128 digits of hexadecimal",
                f"curl '{server.url}/health?challenge={malformed[:40]}'",
            )
