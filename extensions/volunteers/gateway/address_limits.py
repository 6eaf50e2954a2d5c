"""Limits of one address at the public listener: connections, and requests a second."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contracts.limits import Limits
from inference_adapters.http_protocol import LimitedProtocol

CONNECTIONS = 32
USELESS = {400, 401, 403, 404, 405, 413, 422}  # statuses of useless requests
USELESS_PER_S = 20.0
BURST = 100.0
MOST_ADDRESSES = 10_000  # whose requests are counted; beyond, the oldest is forgotten
SLOW_DOWN = JSONResponse({"error": {"code": "slow_down", "message": "too many requests"}}, 429)


class AddressProtocol(LimitedProtocol):
    """A connection that is closed at once if its address has too many. open: connections by address."""

    def __init__(self, open_connections: "Counter[str]", limits: Limits, **options: Any):
        super().__init__(limits, **options)
        self._open = open_connections
        self._address = ""

    def connection_made(self, transport: Any) -> None:
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self._open[self._address] += 1
        super().connection_made(transport)
        if self._open[self._address] > CONNECTIONS:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open[self._address] -= 1
        if self._open[self._address] <= 0:
            del self._open[self._address]
        super().connection_lost(exc)


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
        address = scope["client"][0] if scope["client"] else ""
        if self._tokens(address) < 1:
            await SLOW_DOWN(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            begins = message["type"] == "http.response.start"
            if begins and (scope["method"] == "GET" or message["status"] in USELESS):
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
