"""The control side of the inference contract, as the trainer's rank 0 speaks it over HTTP."""

import json
from typing import Any

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
LONGEST_MESSAGE = 1000  # characters of an answer that is quoted
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
            try:
                body = _parsed(await response.text(errors="replace"))
            except ValueError:  # of a proxy whose server is gone
                return "unhealthy"
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
        body = request.wire() if request else None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self.url + path, json=body, timeout=timeout, allow_redirects=False
        ) as response:
            text = await response.text(errors="replace")
            if response.status >= 300:
                raise _refusal(self.url, response.status, text)
            return _parsed(text)


def _refusal(url: str, status: int, text: str) -> ContractRefusalError:
    """Returns the error that was answered, also where a proxy or an engine answered in a form of its own."""
    try:
        body = _parsed(text)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        error = {}
    code = str(error.get("code", "unknown"))
    return ContractRefusalError(url, status, code, str(error.get("message", text[:LONGEST_MESSAGE])))


def _parsed(text: str) -> Any:
    """Returns the JSON value. Raises ValueError for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("an answer that is nested too deeply") from error
