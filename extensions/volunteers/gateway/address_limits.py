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
SLOW_DOWN = JSONResponse({"error": {"code": "slow_down", "message": "too many requests"}}, 429)


def _is_useless(scope: Scope, status: int) -> bool:
    return scope["method"] not in SIGNED or (status >= 400 and status not in PASSING)


def network_of(address: str) -> str:
    """Returns what counts as one address: of IPv6 the first 64 bits, which one user has."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((address, 64), strict=False)) if parsed.version == 6 else address


class PublicBodies(BodyLimits):
    """Middleware that reads bodies: large ones only of uploads of tasks that exist.

    most_bytes: returns the largest upload of a task, by its name.
    """

    def __init__(self, app: ASGIApp, limits: Limits, most_receiving: int, most_bytes: Callable[[str], int]):
        super().__init__(app, limits, most_receiving)
        self._most_bytes = most_bytes

    def check(self, scope: Scope, body: bytes) -> None:
        """Checks nothing: the app refuses whatever is no signed envelope, and reads the JSON once."""

    def limit_of(self, path: str) -> int:
        most = self._most_bytes(path.removeprefix(TASKS)) if path.startswith(TASKS) else 0
        return max(ENVELOPE_BYTES, most)


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
