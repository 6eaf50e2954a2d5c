"""A strict server of version 1 of the inference contract: the scripted engine behind a filter of its own.

The models below are the contract as it was: a request with any other field is refused, and an answer has no
other field. No limit is stated, and no challenge is answered.
"""

import json
from typing import Any, Literal

import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from contracts.support.token import token_of
from inference_adapters.app import create_app
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.serve import arguments

CONTRACT = {
    *("contract", "engine", "engine_version", "model", "ranks", "backends", "nccl_version", "accepts_dtypes"),
    *("kv_cache", "capabilities", "run", "group", "weights", "process"),
}


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Join(Strict):
    run: str
    takeover: bool = False
    epoch: int
    group_name: str
    backend: str
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    timeout_s: float
    nccl_version: str | None = None


class Parameter(Strict):
    name: str
    dtype: str
    shape: list[int]


class Update(Strict):
    run: str
    epoch: int
    version: int
    parameters: list[Parameter]
    tied: dict[str, str] = {}
    bucket_bytes: int
    kv_cache: str = "keep"
    receive: str = "paused"
    timeout_s: float


class Abort(Strict):
    run: str
    epoch: int
    version: int


class Score(Strict):
    sequences: list[list[int]]
    temperature: float = 1.0


class Generation(Strict):
    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    n: int = 1
    stream: bool = False
    stop_token_ids: list[int] = []
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None


class Chat(Generation):
    messages: list[dict[str, Any]]
    logprobs: bool = False
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | Literal["auto", "none"] | None = None


class Completion(Generation):
    prompt: str | list[int]
    logprobs: bool | int | None = None


BODIES: dict[str, type[Strict]] = {
    "/init_process_group": Join,
    "/request_weight_update": Update,
    "/abort_weight_update": Abort,
    "/score": Score,
    "/v1/chat/completion": Chat,
    "/v1/chat/completions": Chat,
    "/v1/completions": Completion,
}


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
        if scope["method"] == "POST" and (model := BODIES.get(scope["path"])):
            try:
                unknown = model.model_validate_json(body) and None
            except ValidationError as error:
                unknown = next((e for e in error.errors() if e["type"] == "extra_forbidden"), None)
            if unknown:
                kind = "unsupported_parameter" if scope["path"].startswith("/v1/") else "invalid_request"
                where = ".".join(map(str, unknown["loc"]))
                refusal = {"error": {"code": kind, "message": f"{where}: {unknown['msg']}"}}
                await JSONResponse(refusal, 422)(scope, receive, send)
                return
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def again():
            return rest.pop() if rest else await receive()

        await self.app(scope, again, send)


if __name__ == "__main__":
    options = arguments(__doc__).parse_args()
    config = uvicorn.Config(
        Version1(create_app(ScriptedEngine(0.002), token_of(None))),
        host=options.host,
        port=options.port,
        log_level="warning",
    )
    print(f"listening at http://{options.host}:{options.port}", flush=True)
    uvicorn.Server(config).run()
