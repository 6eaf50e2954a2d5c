"""vLLM's other routes, with errors converted to the contract's form."""

import json
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.errors import ContractError, ErrorCode
from inference_adapters.error_answers import error_answer
from inference_adapters.vllm.errors import BY_STATUS, refusal

log = logging.getLogger(__name__)


class OtherRoutes:
    """ASGI middleware around vLLM's app that converts error responses to the contract's form."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0
        body = b""

        async def pass_on(message: Message) -> None:
            nonlocal status, body
            if message["type"] == "http.response.start":
                status = message["status"]
            if status < 400:
                await send(message)
            else:
                body += message.get("body", b"")

        try:
            await self.app(scope, receive, pass_on)
        except Exception as error:
            if 0 < status < 400:  # the response has begun, so the server can only close the connection
                raise
            if status == 0:
                await error_answer(_refusal_of(error), scope["path"])(scope, receive, send)
                return
        if status >= 400:
            await error_answer(_refusal(scope, status, body), scope["path"])(scope, receive, send)


def _refusal_of(error: Exception) -> ContractError:
    why = refusal(error)
    if why.code is ErrorCode.ENGINE_FAILED:
        log.exception("a route of vLLM's failed", exc_info=error)
    return why


def _refusal(scope: Scope, status: int, body: bytes) -> ContractError:
    """Converts vLLM's error response to a ContractError, with vLLM's message if it has one."""
    asked = f"{scope['method']} {scope['path']}"
    codes = BY_STATUS | {401: ErrorCode.UNAUTHORIZED, 405: ErrorCode.METHOD_NOT_ALLOWED}
    try:
        answer = json.loads(body)
        message = str(answer["error"]["message"] if "error" in answer else answer["detail"])
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace") or f"status {status}"
    code = codes.get(status, ErrorCode.ENGINE_FAILED if status >= 500 else ErrorCode.INVALID_REQUEST)
    return ContractError(code, f"{asked}: {message}")
