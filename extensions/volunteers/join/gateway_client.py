"""The volunteer's side of the messages: signs requests, and verifies what the gateway signed."""

import asyncio
from typing import Any, TypeVar

import aiohttp
import msgspec

from contracts.channel import PublicKey
from contracts.limits import MAX_INTEGER
from contracts.support.messages import printable
from extensions.stored_weights.store.signing import SigningKey
from extensions.volunteers.messages import (
    GATEWAY_TYPE,
    VOLUNTEER_TYPE,
    Accepted,
    Ask,
    Granted,
    Me,
    Message,
    MessageError,
    Register,
    Return,
    Run,
    Standing,
    Upload,
    opened,
    signed,
)

ANSWER_S = 30.0
POLL_S = 40.0  # longer than the gateway lets a request for a task wait
AUDIT_S = 300.0
LONGEST_ANSWER = 2**26  # bytes

A = TypeVar("A")


class RefusedError(Exception):
    """The gateway answered with an error; the message is its own.

    word: its code. status: of HTTP. last: the largest counter that it knows, if that is what is wrong.
    """

    def __init__(self, status: int, word: str, message: str, last: int | None = None):
        super().__init__(message)
        self.status = status
        self.word = word
        self.last = last


class AwayError(Exception):
    """The gateway does not answer, or something else answers in its place."""


class GatewayClient:
    """A volunteer's connection to a gateway. It sends one message after the other, each with a new counter.

    gateway: public key of the gateway, as hex, from the invite link.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, gateway: str, key: SigningKey):
        self._session = session
        self._url = url
        self._gateway = PublicKey(id="gateway", ed25519=gateway)
        self._key = key
        self._life = ""
        self._counter = 0
        self._sending = asyncio.Lock()

    @property
    def address(self) -> str:
        return self._key.public.id

    async def run(self) -> Run:
        """Returns what the gateway says about the run."""
        run = await self._answer("GET", "/v1/run", None, Run, ANSWER_S)
        if run.life != self._life:
            self._life = run.life
            self._counter = 0
        return run

    async def register(self, invite: str, software: str, device: str) -> Standing:
        fields = {"public_key": self._key.public.ed25519, "invite": invite}
        described = {"software": software[:200], "device": device[:200]}
        return await self._send("POST", "/v1/volunteers", Register, Standing, ANSWER_S, **fields, **described)

    async def me(self) -> Standing:
        return await self._send("POST", "/v1/me", Me, Standing, ANSWER_S)

    async def ask(self, run: str, version: int, room: int) -> Granted:
        """Returns a task, or none after a while; the volunteer's open task again, if it has one."""
        asked = {"run": run, "version": version, "room": room}
        return await self._send("POST", "/v1/tasks", Ask, Granted, POLL_S, **asked)

    async def upload(self, task: str, members: list[Any]) -> Accepted:
        """Uploads a task. If the answer is lost, the same bytes are sent again, and get the same answer."""
        async with self._sending:
            body = self._body(Upload, task=task, members=members)
            for pause_s in (1.0, 3.0, 10.0):
                try:
                    return await self._answer("PUT", f"/v1/tasks/{task}", body, Accepted, AUDIT_S)
                except RefusedError as error:
                    if error.word != "overloaded":
                        raise
                except AwayError:
                    pass
                await asyncio.sleep(pause_s)
            return await self._answer("PUT", f"/v1/tasks/{task}", body, Accepted, AUDIT_S)

    async def give_back(self, task: str) -> Standing:
        return await self._send("DELETE", f"/v1/tasks/{task}", Return, Standing, ANSWER_S, task=task)

    async def _send(
        self, method: str, path: str, kind: type[Message], answer: type[A], timeout_s: float, **fields: Any
    ) -> A:
        async with self._sending:
            try:
                return await self._answer(method, path, self._body(kind, **fields), answer, timeout_s)
            except RefusedError as error:
                if error.last is None:
                    raise
                self._counter = error.last  # of an earlier process with this key
            return await self._answer(method, path, self._body(kind, **fields), answer, timeout_s)

    def _body(self, kind: type[Message], **fields: Any) -> bytes:
        self._counter += 1
        who = {"volunteer": self.address, "gateway": self._gateway.ed25519, "life": self._life}
        message = kind(**who, counter=self._counter, **fields)
        return signed(self._key, message, VOLUNTEER_TYPE)

    async def _answer(self, method: str, path: str, body: bytes | None, kind: type[A], timeout_s: float) -> A:
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=10.0)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, self._url + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                answered = await response.content.read(LONGEST_ANSWER)
                while chunk := await response.content.read(LONGEST_ANSWER - len(answered)):
                    answered += chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AwayError(f"{self._url} does not answer: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise _refusal(response.status, answered)
        try:
            return opened(answered, self._gateway, GATEWAY_TYPE, kind)
        except MessageError as error:
            raise AwayError(
                f"what answers at {self._url} is not the gateway of the invite link: {error}"
            ) from error


def _refusal(status: int, body: bytes) -> Exception:
    try:
        error = msgspec.json.decode(body)["error"]
        last = error.get("last")
        is_counter = error["code"] == "counter" and isinstance(last, int) and 0 <= last < MAX_INTEGER - 1
        message = printable(str(error["message"]))[:1000]
        return RefusedError(status, printable(str(error["code"])), message, last if is_counter else None)
    except (ValueError, KeyError, TypeError):
        return AwayError(f"what answers is no gateway: status {status}")
