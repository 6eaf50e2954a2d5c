"""The HTTP app for volunteers. It has none of the contract's routes, and knows no token of the run.

Every request is a signed envelope, and every answer but an error is one as well.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from contracts.channel import PublicKey
from contracts.support.messages import printable
from extensions.stored_weights.store.errors import StoreError
from extensions.stored_weights.store.signing import SigningKey, unverified
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.pool import Pool, TaskError
from extensions.volunteers.gateway.registry import NotAllowedError, Volunteer, address_of
from extensions.volunteers.gateway.tasks import OpenTask
from extensions.volunteers.gateway.uploads import ENVELOPE_BYTES, Uploads
from extensions.volunteers.messages import (
    GATEWAY_TYPE,
    VOLUNTEER_TYPE,
    Accepted,
    Ask,
    Granted,
    Head,
    LedgerHead,
    Me,
    Member,
    Message,
    MessageError,
    Register,
    Return,
    Run,
    Standing,
    Task,
    Upload,
    decoded,
    payload_of,
    signed,
)
from inference_adapters.streaming import until_disconnect

POLL_S = 20.0  # longest wait for a task
LEDGER_ENTRIES = 20

M = TypeVar("M", bound=Message)


class CounterError(Exception):
    """A message that was sent before, or whose sender has started anew. last: the largest counter so far."""

    def __init__(self, last: int):
        super().__init__(f"the counter must be above {last}")
        self.last = last


class PublicRoutes:
    """The routes. describe_run: returns what volunteers need to know about the run."""

    def __init__(
        self,
        pool: Pool,
        uploads: Uploads,
        key: SigningKey,
        life: str,
        describe_run: Callable[[], Run],
        poll_s: float = POLL_S,
    ):
        self._pool = pool
        self._uploads = uploads
        self._registry = pool.registry
        self._key = key
        self._life = life
        self._describe_run = describe_run
        self._poll_s = poll_s
        self._counters: dict[str, int] = {}  # the last one of each registered volunteer

    def app(self) -> Starlette:
        """Returns the ASGI app."""
        task = "/v1/tasks/{task:str}"
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/run", self._run),
                Route("/v1/ledger", self._ledger),
                Route("/v1/volunteers", self._answering(self._register), methods=["POST"]),
                Route("/v1/me", self._answering(self._me), methods=["POST"]),
                Route("/v1/tasks", self._answering(self._ask), methods=["POST"]),
                Route(task, self._answering(self._upload), methods=["PUT"]),
                Route(task, self._answering(self._return), methods=["DELETE"]),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _http_error},
        )

    # --- open to everybody ------------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ready" if self._pool.run else "waiting for the trainer"})

    async def _run(self, request: Request) -> Response:
        return self._signed(self._describe_run())

    async def _ledger(self, request: Request) -> Response:
        """Lines: the signed head, then entries from the number `from` on, at most 20."""
        first = request.query_params.get("from", "1")
        if not first.isascii() or not first.isdigit() or len(first) > 15:
            return _error(400, "bad_request", "from: the number of the first entry")
        database = self._registry.database
        query = "SELECT * FROM ledger WHERE seq >= ? ORDER BY seq LIMIT ?"
        rows = database.rows(query, int(first), LEDGER_ENTRIES)
        head = self._signed(LedgerHead(*ledger.head(database))).body
        lines = [head, *(msgspec.json.encode(dict(row)) for row in rows)]
        return Response(b"\n".join(lines) + b"\n", media_type="application/x-ndjson")

    # --- for volunteers ---------------------------------------------------------------------------

    def _answering(self, route: Callable[[Request, bytes], Awaitable[Struct | None]]):
        """Returns an endpoint that turns refusals into answers."""

        async def endpoint(request: Request) -> Response:
            try:
                answer = await route(request, await request.body())
            except CounterError as error:
                return _error(401, "counter", str(error), last=error.last)
            except TaskError as error:
                return _error(error.status, error.word, str(error))
            except NotAllowedError as error:
                return _error(403, "not_allowed", str(error))
            return Response() if answer is None else self._signed(answer)  # None: the client has left

        return endpoint

    async def _register(self, request: Request, body: bytes) -> Standing:
        try:
            key = _own_key(unverified(body))
        except (StoreError, ValueError, RecursionError) as error:
            raise _bad(error) from None
        message = _opened(body, key, Register)
        self._check_life(message)  # there is no counter: whoever is registered is not registered again
        return self._standing(self._registry.register(message))

    async def _me(self, request: Request, body: bytes) -> Standing:
        message = self._taken(body, Me)
        return self._standing(self._registry.get(message.volunteer))

    async def _ask(self, request: Request, body: bytes) -> Granted | None:
        asked = self._taken(body, Ask)

        async def work() -> Granted:
            task = await self._pool.ask(asked, self._poll_s)
            return Granted(task and self._task(task), self._pool.weights)

        return await until_disconnect(request.receive, work())

    async def _upload(self, request: Request, body: bytes) -> Accepted:
        """There is no counter: a task is uploaded once, and the same bytes get the same answer."""
        name = request.path_params["task"]
        sender = self._sender(body)
        payload = _verified(body, sender.key)
        head = _head(body)
        if (head.action, head.task) != ("upload", name):
            raise TaskError(400, "bad_request", "this is no upload of the task in the URL")
        self._check_life(head)
        if (accepted := self._uploads.again(name, body)) is not None:
            return Accepted(accepted)
        try:
            upload: Upload | str = decoded(payload, Upload)
        except MessageError as error:
            upload = str(error)[:500]
        return Accepted(await self._uploads.answer(name, sender.address, body, upload))

    async def _return(self, request: Request, body: bytes) -> Standing:
        message = self._taken(body, Return)
        if message.task != request.path_params["task"]:
            raise TaskError(400, "bad_request", "the message names another task than the URL")
        await self._pool.give_back(self._uploads.open_task(message.task, message.volunteer), "returned")
        return self._standing(self._registry.get(message.volunteer))

    # --- messages ---------------------------------------------------------------------------------

    def _taken(self, body: bytes, kind: type[M]) -> M:
        """Returns a message of a registered volunteer, which is taken once. Raises TaskError."""
        if len(body) > ENVELOPE_BYTES:
            raise TaskError(413, "too_large", f"{len(body)} bytes; a message has at most {ENVELOPE_BYTES}")
        message = _opened(body, self._sender(body).key, kind)
        self._check_life(message)
        last = self._counters.get(message.volunteer, -1)
        if message.counter <= last:
            raise CounterError(last)
        self._counters[message.volunteer] = message.counter
        return message

    def _sender(self, body: bytes) -> Volunteer:
        """Returns the volunteer that a message names; its signature is not verified yet. Raises TaskError."""
        volunteer = self._registry.allowed(_head(body).volunteer)
        if volunteer is None:
            raise TaskError(401, "unknown", "this volunteer is not registered: join with an invite")
        return volunteer

    def _check_life(self, message: Message | Head) -> None:
        if message.gateway != self._key.public.ed25519:
            raise TaskError(401, "signature", "the message is for another gateway")
        if message.life != self._life:
            raise TaskError(401, "life", "the gateway has started anew: read /v1/run again")

    # --- answers ----------------------------------------------------------------------------------

    def _signed(self, message: Struct) -> Response:
        return Response(signed(self._key, message, GATEWAY_TYPE), media_type="application/json")

    def _standing(self, volunteer: Volunteer) -> Standing:
        paused_s = self._pool.tasks.paused_s(volunteer.address)
        paused = volunteer.state == "active" and paused_s > 0
        return Standing(
            volunteer.address,
            volunteer.label,
            "paused" if paused else volunteer.state,
            f"for {paused_s:.0f} s" if paused else volunteer.reason,
            volunteer.tasks,
            volunteer.completions,
            volunteer.recent_strikes,
        )

    def _task(self, task: OpenTask) -> Task:
        sampling = task.members[0].sampling
        greedy = sampling.temperature == 0
        return Task(
            task.name,
            task.run,
            task.version,
            sampling.temperature,
            sampling.max_tokens,
            list(sampling.stop_token_ids),
            [Member(wanted.prompt, None if greedy else wanted.key.hex()) for wanted in task.members],
            round(self._pool.tasks.remaining_s(task), 1),
        )


def _head(body: bytes) -> Head:
    try:
        return msgspec.json.decode(unverified(body), type=Head)
    except (StoreError, ValueError, RecursionError) as error:
        raise _bad(error) from None


def _opened(body: bytes, key: PublicKey, kind: type[M]) -> M:
    """Returns the message that a key has signed, and that names the key. Raises TaskError."""
    try:
        message = decoded(_verified(body, key), kind)
    except MessageError as error:
        raise _bad(error) from None
    if message.volunteer != key.id:
        raise TaskError(401, "signature", "the message names another volunteer than its key")
    return message


def _verified(body: bytes, key: PublicKey) -> bytes:
    """Returns the payload of a message. Raises TaskError unless the key has signed it."""
    try:
        return payload_of(body, key, VOLUNTEER_TYPE)
    except MessageError as error:
        raise TaskError(401, "signature", str(error)) from None


def _own_key(payload: bytes) -> PublicKey:
    """Returns the key in a registration, which has signed it."""
    message = msgspec.json.decode(payload, type=Register)
    return PublicKey(id=address_of(message.public_key), ed25519=message.public_key)


def _bad(error: Exception) -> TaskError:
    why = error.reason if isinstance(error, StoreError) else str(error)
    return TaskError(400, "bad_request", printable(why)[:500])


def _error(status: int, code: str, why: str, **more: int) -> Response:
    return JSONResponse({"error": {"code": code, "message": why, **more}}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        word = "not_found" if error.status_code == 404 else "bad_request"
        return _error(error.status_code, word, str(error.detail))
    return _error(500, "failed", "the gateway has failed; try again later")
