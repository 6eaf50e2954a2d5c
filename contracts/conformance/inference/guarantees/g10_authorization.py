"""G10: with a token configured, every route but `/health` responds 401 without it.

A server of version 2 also proves to a client, which has not sent the token, that it knows it. The content of
`/metrics` is checked here too, requested with the token.
"""

import base64

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.limits import SINCE
from contracts.conformance.inference.metrics_text import check_metrics
from contracts.conformance.inference.proofs import (
    asked,
    check_each_request,
    check_malformed_challenges,
    check_proofs,
)
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError
from contracts.schema.routes import ROUTES

OF_CONTRACT = [route.sample for route in ROUTES if route.path != "/health"]  # offered or not
WAITS = ("GET", "/weight_update/1?wait_s=60")
NO_ROUTE = ("GET", "/no_such_route")
OTHERS = [  # routes that an engine may have, which must not be revealed without the token
    WAITS,
    ("POST", "/v1/chat/completion"),
    ("GET", "/"),
    NO_ROUTE,
    ("POST", "/v1/no_such_route"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("POST", "/generate"),
    ("POST", "/tokenize"),
    ("GET", "/health_generate"),
    ("GET", "/contract/"),
    ("GET", "//contract"),
    ("GET", "/health/../contract"),
    ("DELETE", "/contract"),
    ("PUT", "/v1/completions"),
    ("OPTIONS", "/v1/completions"),
    ("GET", "/init_process_group"),
]
CLOSED = [*OF_CONTRACT, *OTHERS]
WRONG_BODIES = {"a body that is no JSON": b"{", "a body that is no UTF-8": b'{"model": "\xff"}'}
HUGE = str(2**40)  # bytes, beyond any limit
FEW = [("GET", "/contract"), WAITS, ("POST", "/v1/completions"), NO_ROUTE]  # tried with each wrong token


async def routes(bench: Bench) -> str:
    """Sends requests without a token, and with a nearly right token, to every route."""
    wrong = _wrong_headers(_token(bench))
    for server in bench.servers:
        await server.contract()  # the right token is accepted
        for method, path in CLOSED:
            for what in ("no token", "a token with one character more"):
                await _closed(server, method, path, what, wrong[what])
    return f"{len(CLOSED)} routes are closed"


async def bodies(bench: Bench) -> str:
    """Sends bad bodies without a token to every route."""
    _token(bench)
    for server in bench.servers:
        if (await server.contract()).contract >= SINCE:
            for method, path in CLOSED:
                if method == "POST":
                    await _closed_whatever_is_sent(server, path)
    return "whatever is sent"


async def tokens(bench: Bench) -> str:
    """Sends tokens that are wrong in every form."""
    token = _token(bench)
    wrong = _wrong_headers(token)
    for server in bench.servers:
        for what, headers in wrong.items():
            for method, path in FEW:
                await _closed(server, method, path, what, headers)
        for name in ("token", "access_token", "api_key", "key"):
            for path in ("/contract", "/v1/models"):
                await _closed(server, "GET", f"{path}?{name}={token}", "the token in the address", {})
        if not await Server(server.http, server.url, token + "x").ready():
            raise GuaranteeError(
                "GET /health with a wrong token is not 200", "200: /health is open", "ask it"
            )
        await check_each_request(server)
    return f"to {len(wrong)} wrong tokens, /health open"


async def proofs(bench: Bench) -> str:
    """Challenges the servers to prove that they know the token."""
    token = _token(bench)
    for server in bench.servers:
        if (await server.contract()).contract >= SINCE:
            await check_proofs(server, token)
            await check_malformed_challenges(server)
    return "proofs of the token"


async def metrics(bench: Bench) -> str:
    """Reads `/metrics` with the token."""
    _token(bench)
    if not await check_metrics(bench):
        raise NotDeclaredError("metrics are not offered")
    return "metrics of the contract"


PARTS = {
    "routes": routes,
    "bodies": bodies,
    "tokens": tokens,
    "proofs": proofs,
    "metrics": metrics,
}


def _token(bench: Bench) -> str:
    if not bench.settings.token:
        raise NotDeclaredError("start the server and the kit with PIPELINERL_TOKEN")
    return bench.settings.token


def _wrong_headers(token: str) -> dict[str, dict[str, str]]:
    """Returns headers that do not prove knowledge of the token, by description."""
    values = {
        "a token with one character more": f"Bearer {token}x",
        "a token with one character less": f"Bearer {token[:-1]}",
        "a token with another beginning": f"Bearer x{token[1:]}",
        "a token behind another character": f"Bearer x{token}",
        "an empty token": "Bearer ",
        "the scheme alone": "Bearer",
        "the token without a scheme": token,
        "the token twice": f"Bearer {token}{token}",
        "the token and another": f"Bearer {token} x",
        "the token in a list": f"Bearer x, Bearer {token}",
        "the token in quotes": f'Bearer "{token}"',
        "the token as basic": f"Basic {token}",
        "the token as a password": "Basic " + base64.b64encode(f"x:{token}".encode()).decode(),
        "another scheme": f"Token {token}",
        "two schemes": f"Bearer Bearer {token}",
        "None": "Bearer None",
    }
    if token.swapcase() != token:
        values["the token in the other case"] = f"Bearer {token.swapcase()}"
        values["the token in upper case"] = f"Bearer {token.upper()}"
        values["the token in lower case"] = f"Bearer {token.lower()}"
    wrong = {what: {"Authorization": value} for what, value in values.items() if value != f"Bearer {token}"}
    wrong["the token in another header"] = {"X-Api-Key": token}
    wrong["the token in a cookie"] = {"Cookie": f"token={token}; Authorization=Bearer {token}"}
    return {"no token": {}, **wrong}


async def _closed_whatever_is_sent(server: Server, path: str) -> None:
    """Checks that, without the token, neither a bad body nor a too large one changes the response."""
    for what, body in WRONG_BODIES.items():
        await _closed(server, "POST", path, f"no token and {what}", {}, body)
    await _closed(server, "POST", path, "no token and a huge body", {"Content-Length": HUGE})


async def _closed(
    server: Server, method: str, path: str, what: str, headers: dict[str, str], body: bytes = b"{}"
) -> None:
    answer = await asked(server, method, path, headers, body)
    error = answer[1].get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if (answer[0], code) != (401, "unauthorized"):
        raise GuaranteeError(
            f"{method} {path.partition('?')[0]} with {what}: {str(answer)[:120]}",
            "401 unauthorized",
            f"curl -X {method} {server.url}{path.partition('?')[0]}",
        )
