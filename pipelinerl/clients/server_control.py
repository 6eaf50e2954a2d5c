"""The control side of the inference contract, as the trainer's rank 0 speaks it over HTTP."""

import json

import aiohttp

from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    InitProcessGroupRequest,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.wire import Request
from pipelinerl.clients.answer_bodies import body_of

ANSWER_TIMEOUT_S = 10.0  # for answers that wait for nothing
LONGEST_ANSWER = 2**20  # bytes
LONGEST_MESSAGE = 2000  # characters of an error, for the log
GRACE_S = 5.0  # beyond the time that a server itself may wait


class ContractRefusalError(Exception):
    """The server answered with an error of the contract."""

    def __init__(self, url: str, status: int, code: str, message: str):
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.status = status
        self.code = code


class InvalidAnswerError(aiohttp.ClientError):
    """The server's answer is none of the contract's."""


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
            body = _object(await body_of(response, LONGEST_ANSWER))
            return str(body.get("status", "unhealthy")) if body else "unhealthy"

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
        wire = request.wire() if request else None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.request(
            method, self.url + path, json=wire, timeout=timeout, allow_redirects=False
        ) as response:
            body = _object(await body_of(response, LONGEST_ANSWER))
        if response.status >= 300:
            error = body.get("error") if body else None
            error = error if isinstance(error, dict) else {}
            code, message = (str(error.get(name, "unknown")) for name in ("code", "message"))
            raise ContractRefusalError(self.url, response.status, code, message[:LONGEST_MESSAGE])
        if body is None:
            raise InvalidAnswerError(f"{self.url} answered {path} with no JSON object")
        return body


def _object(body: bytes) -> dict | None:
    """Returns None where it is no JSON object, for instance a proxy's page."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
