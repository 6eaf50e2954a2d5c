"""A strict server of version 1 of the inference contract: the scripted engine behind a filter of its own.

The fields below are those of the contract as it was. A request with any other field is refused, and an answer
has no other field. No limit is stated, and no challenge is answered.
"""

import json
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.support.token import token_of
from inference_adapters.app import create_app
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments
from inference_adapters.weight_updates import WeightUpdates

CONTRACT = {
    *("contract", "engine", "engine_version", "model", "ranks", "backends", "nccl_version", "accepts_dtypes"),
    *("kv_cache", "capabilities", "run", "group", "weights", "process"),
}


JOIN = (
    "run takeover epoch group_name backend master_address master_port rank_offset world_size timeout_s "
    "nccl_version"
)
UPDATE = "run epoch version parameters tied bucket_bytes kv_cache receive timeout_s"
GENERATION = "model max_tokens temperature n stream stop_token_ids top_p top_k seed stop logprobs"
CHAT = f"{GENERATION} messages max_completion_tokens tools tool_choice"
FIELDS = {
    "/init_process_group": JOIN,
    "/request_weight_update": UPDATE,
    "/abort_weight_update": "run epoch version",
    "/score": "sequences temperature",
    "/v1/chat/completion": CHAT,
    "/v1/chat/completions": CHAT,
    "/v1/completions": f"{GENERATION} prompt",
}


def unknown_field(path: str, body: bytes) -> str | None:
    """Returns a field of a request that version 1 did not have."""
    try:
        request = json.loads(body)
    except ValueError:  # for the application to refuse
        return None
    if path not in FIELDS or not isinstance(request, dict):
        return None
    parameters = request.get("parameters")
    listed = parameters if isinstance(parameters, list) else []
    inner = {name for parameter in listed if isinstance(parameter, dict) for name in parameter}
    unknown = (request.keys() - {*FIELDS[path].split()}) | (inner - {"name", "dtype", "shape"})
    return min(unknown, default=None)


class Version1:
    """Middleware that validates requests and writes responses as in version 1."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] in ("/health", "/contract"):
            await self._described(scope | {"query_string": b""}, receive, send)
        else:
            await self._checked(scope, receive, send)

    async def _described(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent: list[Any] = []

        async def keep(message):
            sent.append(message)

        await self.app(scope, receive, keep)
        body = json.loads(sent[1]["body"])
        if scope["path"] == "/contract" and sent[0]["status"] == 200:
            body = {name: body[name] for name in CONTRACT} | {"contract": 1}
            body["capabilities"] = [
                word for word in body["capabilities"] if word not in ("arrays", "as_completed")
            ]
        await JSONResponse(body, sent[0]["status"])(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message.get("body", b"")
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
        if scope["method"] == "POST" and (unknown := unknown_field(scope["path"], body)):
            kind = "unsupported_parameter" if scope["path"].startswith("/v1/") else "invalid_request"
            refusal = {"error": {"code": kind, "message": f"{unknown}: version 1 has no such field"}}
            await JSONResponse(refusal, 422)(scope, receive, send)
            return
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def again():
            return rest.pop() if rest else await receive()

        await self.app(scope, again, send)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    config = uvicorn.Config(
        Version1(create_app(WeightUpdates(ScriptedEngine(0.002)), token_of(None))),
        host=options.host,
        port=options.port,
        log_level="warning",
    )
    print(f"listening at http://{options.host}:{options.port}", flush=True)
    uvicorn.Server(config).run()
