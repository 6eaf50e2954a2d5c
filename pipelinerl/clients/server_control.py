"""The client of a server's control routes."""

import json

import aiohttp

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest, InitWeightChannelResponse
from contracts.inference import (
    AbortWeightUpdateRequest,
    ContractInfo,
    InitProcessGroupRequest,
    LeaveProcessGroupRequest,
    SleepRequest,
    SleepResponse,
    WeightUpdateRequest,
    WeightUpdateStatus,
)
from contracts.wire import Request
from pipelinerl.clients.answer_bodies import body_of

ANSWER_TIMEOUT_S = 10.0  # for requests that the server answers immediately
CHANNEL_TIMEOUT_S = 20.0  # for joining a weight channel, whose sources the server tests first
LEAVE_TIMEOUT_S = 2.0  # the trainer then leaves the group all the same
LONGEST_ANSWER = 2**20  # bytes
LONGEST_MESSAGE = 2000  # characters of an error in the log
GRACE_S = 5.0  # added to the server's timeout


class ContractRefusalError(Exception):
    """The server answered with an error of the contract."""

    def __init__(self, url: str, status: int, code: str, message: str):
        super().__init__(f"{url} answered {status} {code}: {message}")
        self.status = status
        self.code = code


class InvalidAnswerError(aiohttp.ClientError):
    """The server's answer does not conform to the contract."""


# Errors of a request that is not answered, or not according to the contract.
NO_ANSWER = (aiohttp.ClientError, TimeoutError, ContractRefusalError, ValueError)


class ServerControl:
    def __init__(self, session: aiohttp.ClientSession, url: str):
        self._session = session
        self.url = url

    async def contract(self, wait_s: float = ANSWER_TIMEOUT_S) -> ContractInfo:
        return ContractInfo.model_validate(await self._call("GET", "/contract", wait_s))

    async def health_status(self) -> str:
        """Returns the status in the server's `/health`. Any answer with HTTP status 200 means "ready"."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
        async with self._session.get(f"{self.url}/health", timeout=timeout) as response:
            if response.status == 200:
                return "ready"
            body = _object(await body_of(response, LONGEST_ANSWER))
            return str(body.get("status", "unhealthy")) if body else "unhealthy"

    async def init_process_group(self, request: InitProcessGroupRequest) -> None:
        await self._call("POST", "/init_process_group", request.timeout_s + GRACE_S, request)

    async def leave_process_group(self, request: LeaveProcessGroupRequest) -> None:
        await self._call("POST", "/leave_process_group", LEAVE_TIMEOUT_S, request)

    async def init_weight_channel(self, request: InitWeightChannelRequest) -> InitWeightChannelResponse:
        answer = await self._call("POST", "/init_weight_channel", CHANNEL_TIMEOUT_S, request)
        return InitWeightChannelResponse.model_validate(answer)

    async def request_weight_update(self, request: WeightUpdateRequest | ChannelUpdateRequest) -> None:
        await self._call("POST", "/request_weight_update", ANSWER_TIMEOUT_S, request)

    async def abort_weight_update(self, request: AbortWeightUpdateRequest) -> None:
        await self._call("POST", "/abort_weight_update", ANSWER_TIMEOUT_S, request)

    async def sleep(self, request: SleepRequest) -> SleepResponse:
        answer = await self._call("POST", "/sleep", request.timeout_s + GRACE_S, request)
        return SleepResponse.model_validate(answer)

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
    """Returns the JSON object in the body, or None if the body is another, such as a proxy's error page."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None
