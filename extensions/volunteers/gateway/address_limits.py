"""Limits of the public listener: sizes of bodies, and useless requests a second of one address."""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.limits import Limits
from extensions.volunteers.gateway.uploads import ENVELOPE_BYTES
from inference_adapters.body_limits import BodyLimits

TASKS = "/v1/tasks/"
SIGNED = {"POST", "PUT", "DELETE"}
PASSING = {409, 410, 429, 503}  # statuses of volunteers that do what they should
USELESS_PER_S = 20.0
BURST = 100.0
MOST_ADDRESSES = 10_000  # whose requests are counted; beyond, the oldest is forgotten
SMALL_RECEIVING = 2**23  # bytes of all messages without completions that are being received
BUSY = JSONResponse({"error": {"code": "overloaded", "message": "this task is being uploaded already"}}, 503)
SLOW_DOWN = JSONResponse({"error": {"code": "slow_down", "message": "too many requests"}}, 429)


def _is_useless(scope: Scope, status: int) -> bool:
    return scope["method"] not in SIGNED or (status >= 400 and status not in PASSING)


def network_of(address: str) -> str:
    """Returns what counts as one address: of IPv6 the first 64 bits, which one user has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed.packed, 64), strict=False))


class PublicBodies:
    """Middleware that reads bodies: large ones only of uploads of known tasks, one of each at a time.

    most_bytes: returns the largest upload of a task, by its name; 0 for an unknown one.
    """

    def __init__(self, app: ASGIApp, limits: Limits, most_receiving: int, most_bytes: Callable[[str], int]):
        self._small = _Bodies(app, limits, SMALL_RECEIVING, lambda name: ENVELOPE_BYTES)
        self._large = _Bodies(app, limits, most_receiving, most_bytes)
        self._most_bytes = most_bytes
        self._reading: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope.get("path", "").removeprefix(TASKS)
        is_large = scope.get("method") == "PUT" and self._most_bytes(name) > ENVELOPE_BYTES
        if not is_large:
            await self._small(scope, receive, send)
        elif name in self._reading:
            await BUSY(scope, receive, send)
        else:
            self._reading.add(name)
            try:
                await self._large(scope, receive, send)
            finally:
                self._reading.discard(name)


class _Bodies(BodyLimits):
    """Reads bodies without a look at their JSON: the app refuses whatever is no signed envelope."""

    def __init__(self, app: ASGIApp, limits: Limits, most_receiving: int, most_bytes: Callable[[str], int]):
        super().__init__(app, limits, most_receiving)
        self._most_bytes = most_bytes

    def check(self, scope: Scope, body: bytes) -> None:
        pass

    def limit_of(self, path: str) -> int:
        return self._most_bytes(path.removeprefix(TASKS))


class RequestRates:
    """Middleware that answers 429 to an address with too many useless requests: a token bucket for each.

    Useless are refused ones, and those that anybody may send. What registered volunteers send is not limited,
    because many of them may share an address.
    """

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = monotonic):
        self.app = app
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        address = network_of(scope["client"][0] if scope["client"] else "")
        if self._tokens(address) < 1:
            await SLOW_DOWN(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_useless(scope, message["status"]):
                self._take(address)
            await send(message)

        await self.app(scope, receive, counted)

    def _tokens(self, address: str) -> float:
        tokens, at = self._buckets.get(address, (BURST, self._clock()))
        return min(BURST, tokens + (self._clock() - at) * USELESS_PER_S)

    def _take(self, address: str) -> None:
        self._buckets[address] = (self._tokens(address) - 1, self._clock())
        self._buckets.move_to_end(address)
        if len(self._buckets) > MOST_ADDRESSES:
            self._buckets.popitem(last=False)
