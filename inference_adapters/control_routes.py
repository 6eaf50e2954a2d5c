"""The routes by which a trainer inspects, joins and updates a server. Every adapter serves them.

This module only translates HTTP: `membership` and `weight_updates` accept or refuse the requests.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from contracts.challenge import CHALLENGE_PATTERN, address_of, proof_of
from contracts.channel import InitWeightChannelRequest, InitWeightChannelResponse
from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    Health,
    InitProcessGroupRequest,
    InitProcessGroupResponse,
    LeaveProcessGroupRequest,
    LeaveProcessGroupResponse,
    SleepRequest,
    SleepResponse,
    WakeRequest,
    WakeResponse,
    WeightUpdateAccepted,
    WeightUpdateStatus,
)
from contracts.limits import LONGEST_S, MAX_INTEGER
from inference_adapters.bodies import update_body
from inference_adapters.channel import Caller
from inference_adapters.update_record import AnyUpdateRequest
from inference_adapters.weight_updates import WeightUpdates

Challenge = Annotated[str | None, Query(pattern=CHALLENGE_PATTERN)]
Version = Annotated[int, Path(ge=0, lt=MAX_INTEGER)]
Wait = Annotated[float, Query(ge=0, lt=LONGEST_S, allow_inf_nan=False)]


def health_routes(updates: WeightUpdates, token: str | None) -> APIRouter:
    """Returns the route `/health`, which also proves that the server knows `token`."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", response_model_exclude_none=True)
    async def health(request: Request, response: Response, challenge: Challenge = None) -> Health:
        health = updates.health()
        is_asleep = health.status == "asleep" and updates.sleeping.takes_requests
        response.status_code = 200 if health.status == "ready" or is_asleep else 503
        if challenge and token:
            address = address_of(*request.scope["server"])
            proof = proof_of(token, challenge, address)
            health = health.model_copy(update={"proof": proof, "address": address})
        return health

    return router


def control_routes(updates: WeightUpdates) -> APIRouter:
    """Returns the routes of weight groups, weight channels, their updates, and sleep."""

    async def loaded() -> None:
        updates.require_loaded()

    router = APIRouter(dependencies=[Depends(loaded)])

    @router.get("/contract")
    async def contract() -> ContractInfo:
        return updates.contract()

    @router.post("/init_process_group")
    async def init_process_group(request: InitProcessGroupRequest) -> InitProcessGroupResponse:
        return InitProcessGroupResponse(ranks=await updates.membership.join(request))

    @router.post("/leave_process_group")
    async def leave_process_group(request: LeaveProcessGroupRequest) -> LeaveProcessGroupResponse:
        return LeaveProcessGroupResponse(left=await updates.membership.leave(request))

    @router.post("/init_weight_channel")
    async def init_weight_channel(
        request: InitWeightChannelRequest, http: Request
    ) -> InitWeightChannelResponse:
        caller = Caller(http.client.host if http.client else "", http.scope["server"][0])
        return await updates.membership.join_channel(request, caller)

    @router.post("/request_weight_update", status_code=202)
    async def request_weight_update(
        request: Annotated[AnyUpdateRequest, Depends(update_body)],
    ) -> WeightUpdateAccepted:
        return updates.request(request)

    @router.get("/weight_update/{version}")
    async def weight_update(version: Version, wait_s: Wait = 0.0) -> WeightUpdateStatus:
        return await updates.status(version, wait_s)

    @router.post("/abort_weight_update")
    async def abort_weight_update(request: AbortWeightUpdateRequest) -> WeightUpdateStatus:
        return await updates.abort(request)

    @router.post("/sleep")
    async def sleep(request: SleepRequest) -> SleepResponse:
        return await updates.sleeping.sleep(request)

    @router.post("/wake")
    async def wake(request: WakeRequest) -> WakeResponse:
        return await updates.sleeping.wake(request)

    return router
