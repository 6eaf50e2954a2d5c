"""G10: with a token configured, every route but `/health` responds 401 without it.

A server of version 2 also proves that it knows the token, to a client that has not sent it.
"""

from contracts.challenge import is_proof, new_challenge
from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.limits import SINCE
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

ROUTES = [
    ("GET", "/contract"),
    ("POST", "/init_process_group"),
    ("POST", "/request_weight_update"),
    ("GET", "/weight_update/1"),
    ("POST", "/abort_weight_update"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/chat/completion"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("POST", "/score"),
]


async def authorization(bench: Bench) -> str:
    """Sends requests without a token and with wrong tokens to every route, and checks the responses."""
    if not bench.settings.token:
        raise NotDeclaredError("start the server and the kit with PIPELINERL_TOKEN")
    wrong = [None, bench.settings.token + "x", bench.settings.token[:-1]]
    for server in bench.servers:
        for token in wrong:
            client = Server(server.http, server.url, token)
            for method, path in ROUTES:
                answer = await (client.get(path) if method == "GET" else client.post(path, {}))
                if (answer[0], answer[1].get("error", {}).get("code")) != (401, "unauthorized"):
                    with_what = "a wrong token" if token else "no token"
                    raise GuaranteeError(
                        f"{method} {path} with {with_what}: {str(answer)[:120]}",
                        "401 unauthorized",
                        f"curl -X {method} {server.url}{path}",
                    )
            if not await client.ready():
                raise GuaranteeError(
                    "GET /health without a token is not 200", "200: /health is open", "ask it"
                )
        contract = await server.contract()  # the right token is accepted
        if contract.contract >= SINCE:
            await _proves_itself(server, bench.settings.token)
    return f"{len(ROUTES)} routes closed to {len(wrong)} wrong tokens, /health open"


async def _proves_itself(server: Server, token: str) -> None:
    """Checks that challenges get proofs that only who knows the token can give, and malformed ones 422."""
    client = Server(server.http, server.url, None)
    for _ in range(2):
        challenge = new_challenge()
        path = f"/health?challenge={challenge}"
        _, body = await client.get(path)
        proof = str(body.get("proof"))
        address = str(body.get("address"))
        if not is_proof(proof, token, challenge, address):
            raise GuaranteeError(
                f"GET /health?challenge=...: proof {proof[:80]}, address {address}",
                "the HMAC by the token of this challenge and of the address at which it was asked",
                f"curl '{server.url}{path}', and compare with contracts.challenge.proof_of",
            )
    for malformed in ("", "xyz", challenge[:30], challenge.upper() + "g", "0" * 1000):
        status, body = await client.get(f"/health?challenge={malformed}")
        if (status, body.get("error", {}).get("code")) != (422, "invalid_request") or "proof" in body:
            raise GuaranteeError(
                f"GET /health?challenge={malformed[:40]}: {status} {str(body)[:120]}",
                "422 invalid_request: a challenge has 32 to 128 digits of hexadecimal",
                f"curl '{server.url}/health?challenge={malformed[:40]}'",
            )
