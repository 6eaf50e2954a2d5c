"""G10: with a token configured, every route but `/health` responds 401 without it."""

from contracts.conformance.inference.bench import Bench
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
        await server.contract()  # the right token is accepted
    return f"{len(ROUTES)} routes closed to {len(wrong)} wrong tokens, /health open"
