"""The control side of the inference contract, as the trainer's rank 0 speaks it over HTTP."""

import aiohttp

from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    InitProcessGroupRequest,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.wire import Request

ANSWER_TIMEOUT_S = 10.0  # for answers that wait for nothing
GRACE_S = 5.0  # beyond the time that a server itself may wait


class ContractRefusalError(Exception):
    """The server answered with an error of the contract."""

    def __init__(self, url: str, status: int, code: str, message: str):
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.status = status
        self.code = code


class ServerControl:
    def __init__(self, session: aiohttp.ClientSession, url: str):
        self._session = session
        self.url = url

    async def contract(self, wait_s: float = ANSWER_TIMEOUT_S) -> ContractInfo:
        return ContractInfo.model_validate(await self._call("GET", "/contract", wait_s))

    async def health_status(self) -> str:
        """What the server says of itself: ready, or why not. A 200 without the contract's body is ready."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with self._session.get(f"{self.url}/health", timeout=timeout) as response:
            if response.status == 200:
                return "ready"
            body = await response.json(content_type=None)
            return str(body.get("status", "unhealthy")) if isinstance(body, dict) else "unhealthy"

    async def init_process_group(self, request: InitProcessGroupRequest) -> None:
        await self._call("POST", "/init_process_group", request.timeout_s + GRACE_S, request)

    async def request_weight_update(self, request: WeightUpdateRequest) -> None:
        await self._call("POST", "/request_weight_update", ANSWER_TIMEOUT_S, request)

    async def abort_weight_update(self, request: AbortWeightUpdateRequest) -> None:
        await self._call("POST", "/abort_weight_update", ANSWER_TIMEOUT_S, request)

    async def weight_update(self, version: int, wait_s: float) -> WeightUpdateStatus:
        path = f"/weight_update/{version}?wait_s={wait_s}"
        return WeightUpdateStatus.model_validate(await self._call("GET", path, wait_s + GRACE_S))

    async def _call(self, method: str, path: str, timeout_s: float, request: Request | None = None) -> dict:
        json = request.wire() if request else None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(method, self.url + path, json=json, timeout=timeout) as response:
            body = await response.json(content_type=None)
            if response.status >= 400:
                error = body.get("error") if isinstance(body, dict) else None
                told = error if isinstance(error, dict) else {}
                code = str(told.get("code", "unknown"))
                message = str(told.get("message", body))
                raise ContractRefusalError(self.url, response.status, code, message)
            return body
