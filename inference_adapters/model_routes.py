"""The routes `/v1/models` and `/version`, and the names of a server's model. Every adapter serves them.

A request names the model as `/contract` does, or by one of its other served names.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends

from contracts.errors import ContractError, ErrorCode
from contracts.inference import InferenceEngine
from inference_adapters.weight_updates import WeightUpdates

Cards = Callable[[], Awaitable[list[dict[str, Any]]]]  # OpenAI's description of each model


class ModelNames:
    """The names that a request may use for an engine's model: first the engine's, then `served`."""

    def __init__(self, engine: InferenceEngine, served: Sequence[str] = ()):
        self._engine = engine
        self._served = served

    def check(self, name: str) -> None:
        """Raises ContractError unless the model has this name."""
        model = self._engine.info().model
        if name != model and name not in self._served:
            raise no_such_model(name, [model, *self._served])

    async def cards(self) -> list[dict[str, Any]]:
        info = self._engine.info()
        return [
            {"id": name, "object": "model", "created": 0, "owned_by": info.engine}
            for name in dict.fromkeys([info.model, *self._served])
        ]


def no_such_model(name: str, names: Sequence[str]) -> ContractError:
    why = f"model {name!r}: this server has {' and '.join(map(repr, names))}"
    return ContractError(ErrorCode.NOT_FOUND, why, "model")


def model_routes(updates: WeightUpdates, cards: Cards) -> APIRouter:
    """Returns the routes. `cards` returns OpenAI's description of each model."""

    async def loaded() -> None:
        updates.require_loaded()

    router = APIRouter(dependencies=[Depends(loaded)])

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": await cards()}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        known = {card["id"]: card for card in await cards()}
        if name not in known:
            raise no_such_model(name, list(known))
        return known[name]

    @router.get("/version")
    async def version() -> dict[str, str]:
        info = updates.engine.info()
        return {"version": info.engine_version, "engine": info.engine}

    return router
