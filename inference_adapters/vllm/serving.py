"""vLLM's HTTP app around an engine client: its serving layer, and its routes."""

from argparse import Namespace
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.v1.engine.async_llm import AsyncLLM


class Serving:
    """vLLM's ASGI app. Call `start` before serving requests."""

    def __init__(self) -> None:
        self._app: FastAPI | None = None
        self._open = AsyncExitStack()

    async def start(self, llm: AsyncLLM, args: Namespace) -> None:
        tasks = await llm.get_supported_tasks()
        app = build_app(args, tasks, llm.model_config)
        await init_app_state(llm, app.state, args, tasks)
        app.state.server = (
            Namespace()
        )  # vLLM sets its exit flag, without effect: `VllmEngine` ends the server
        await self._open.enter_async_context(app.router.lifespan_context(app))
        self._app = app

    async def close(self) -> None:
        await self._open.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def cards(self) -> list[dict[str, Any]]:
        """Returns OpenAI's description of each served model and adapter."""
        models = await self._app.state.openai_serving_models.show_available_models()
        return models.model_dump()["data"]

    def chat(self, asked: ChatCompletionRequest, request: Request) -> Awaitable[Any]:
        return self._app.state.openai_serving_chat.create_chat_completion(asked, request)

    def completion(self, asked: CompletionRequest, request: Request) -> Awaitable[Any]:
        return self._app.state.openai_serving_completion.create_completion(asked, request)
