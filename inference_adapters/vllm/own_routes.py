"""vLLM's own app behind the contract's routes: which routes it serves, and when."""

from starlette.types import ASGIApp, Receive, Scope, Send

from inference_adapters.vllm.engine import VllmEngine
from inference_adapters.vllm.lost_weights import ended_when_lost
from inference_adapters.vllm.other_routes import OtherRoutes
from inference_adapters.weight_updates import WeightUpdates


def own_routes(engine: VllmEngine, updates: WeightUpdates) -> ASGIApp:
    """Returns vLLM's other routes. Routes that generate are refused while weights are missing."""
    serving = OtherRoutes(engine.serving)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "POST":
            updates.require_loaded()
            await serving(scope, receive, send)
            return
        updates.require_ready()
        async with ended_when_lost(engine, updates):
            await serving(scope, receive, send)

    return serve
