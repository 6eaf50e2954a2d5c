"""Assigns requests to servers, and queues requests while no server is free. Must not know HTTP.

The actor sets the servers after every `WeightsPublished`, removes those that left the run, and pauses the
pool before a publication, with some schedules. `server_watch` reports servers that do not answer, and the
gate of a transport holds those whose weights must not be used. `Routing` chooses each request's server.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from pipelinerl.clients.attempt_clock import AttemptClock
from pipelinerl.clients.faults import ServerFaultError, ServerUnavailableError
from pipelinerl.clients.routing import Routing, Server


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a slot on a server other than `avoid`."""

    avoid: str | None
    slot: "asyncio.Future[_RequestSlot]"


@dataclass(eq=False)
class _RequestSlot:
    """A request's slot on a server. The pool can cancel the request."""

    server: Server
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    is_cancelled: bool = False
    entered: bool = False

    def cancel(self) -> None:
        if not self.is_cancelled and self.entered:
            self.limit.reschedule(asyncio.get_running_loop().time())
        self.is_cancelled = True


class ServerPool:
    """A pool that assigns requests to its least busy servers, in the order of their arrival.

    limit: the initial limit of concurrent requests of each server; `set_limit` changes it.
    """

    def __init__(self, limit: int):
        self._routing = Routing(limit)
        self._waiting: deque[_Waiting] = deque()
        self._slots: set[_RequestSlot] = set()
        self._open = True
        self._suspended = False
        self._no_request: list[asyncio.Future[None]] = []
        self._has_server = asyncio.Event()
        self._clocks: set[AttemptClock] = set()  # clocks of the running attempts
        self._timer: asyncio.TimerHandle | None = None

    @property
    def capacity(self) -> int:
        """The number of request slots, including those of requests still on removed servers."""
        return self._routing.capacity

    @property
    def in_flight(self) -> int:
        return self._routing.in_flight

    @property
    def urls(self) -> list[str]:
        return self._routing.urls

    def set_limit(self, url: str, limit: int) -> None:
        """Sets the limit of a server's concurrent requests. Requests in flight are not interrupted."""
        self._routing.set_limit(url, limit)
        self._assign()

    async def set_servers(self, urls: Iterable[str], sparing: Collection[str] = ()) -> None:
        """Routes requests only to these servers.

        Cancels the requests in flight on the other servers, except on those in `sparing`.
        """
        for url in self._routing.set_servers(urls):
            if url not in sparing:
                self._routing.leave_out(url)
                self._cancel_requests(url)
        self._servers_changed()

    def forget(self, url: str, drains: bool = False) -> None:
        """Removes a server that left the run. A later server at the same URL starts without its state.

        Cancels the requests in flight on it, unless it drains. If no server is left, requests wait for one.
        """
        if not drains:
            self._cancel_requests(url)
        self._routing.forget(url)
        self._servers_changed()

    def _servers_changed(self) -> None:
        if self._stops_clocks and self._has_server.is_set():
            self._has_server.clear()
            for clock in self._clocks:
                clock.stop()
        elif not self._stops_clocks and not self._has_server.is_set():
            self._has_server.set()
            for clock in self._clocks:
                clock.resume()
        self._assign()
        self._notify_if_idle()

    @property
    def is_empty(self) -> bool:
        return self._routing.is_empty

    @property
    def has_no_usable_server(self) -> bool:
        """True if no server may get requests: there is none, or all are held."""
        return self._routing.has_no_usable_server

    @property
    def held(self) -> dict[str, str]:
        """The reason of the hold of each held server, by URL."""
        return self._routing.held

    @property
    def _stops_clocks(self) -> bool:
        return self._suspended or self.has_no_usable_server

    async def some_server(self) -> None:
        """Waits until the pool has a server that may get requests, and is not suspended."""
        await self._has_server.wait()

    @contextmanager
    def timing(self, clock: AttemptClock) -> Iterator[None]:
        """Pauses the attempt's clock while the pool is suspended or has no server that may get requests."""
        self._clocks.add(clock)
        if self._stops_clocks:
            clock.stop()
        try:
            yield
        finally:
            self._clocks.discard(clock)

    async def pause(self) -> None:
        """Queues further requests until `resume`, and waits until none is in flight."""
        self._open = False
        while self.in_flight:
            none_left = asyncio.get_running_loop().create_future()
            self._no_request.append(none_left)
            await none_left

    def suspend(self) -> None:
        """Queues further requests until `resume`, and pauses the attempts' clocks, because servers sleep.

        Requests in flight wait in their servers.
        """
        self._open = False
        self._suspended = True
        self._servers_changed()

    async def resume(self) -> None:
        self._open = True
        self._suspended = False
        self._servers_changed()

    @asynccontextmanager
    async def server(self, avoid: str | None = None) -> AsyncIterator[str]:
        """Yields the URL of the server for one request; not `avoid` if another one is in service.

        A ServerFaultError in the block counts against that server. Raises ServerUnavailableError if the pool
        cancels the request.
        """
        slot = await self._acquire(avoid)
        try:
            async with slot.limit:
                slot.entered = True
                yield slot.server.url
            self._routing.succeeded(slot.server)
        except TimeoutError as error:
            if slot.limit.expired():
                raise ServerUnavailableError("left_out") from error
            raise
        except ServerFaultError:
            self._routing.failed(slot.server, asyncio.get_running_loop().time())
            raise
        finally:
            self._release(slot)

    def count_against(self, url: str) -> None:
        """Counts a failure against a server after its request has ended."""
        if server := self._routing.find(url):
            self._routing.failed(server, asyncio.get_running_loop().time())

    # --- silence ------------------------------------------------------------------------------

    def leave_out(self, url: str) -> None:
        """Takes a server that does not answer out of service, and cancels its requests.

        Does nothing if no other server is in service, because requests then wait for this one.
        """
        if self._routing.leave_out(url):
            self._cancel_requests(url)
            self._assign()  # requests that avoid another server may have waited for this one

    def take_back(self, url: str) -> None:
        """Puts a server that answers again back into service, at first with one request."""
        self._routing.take_back(url)
        self._assign()

    def has_other(self, url: str) -> bool:
        return self._routing.has_other(url)

    # --- weights that may not be used ---------------------------------------------------------

    def hold(self, url: str, why: str) -> None:
        """Sends no new requests to a server until `release`. Its requests in flight continue."""
        if self._routing.hold(url, why):
            self._servers_changed()

    def release(self, url: str) -> None:
        if self._routing.release(url):
            self._servers_changed()

    # --- waiting ------------------------------------------------------------------------------

    async def _acquire(self, avoid: str | None) -> _RequestSlot:
        while True:
            slot = await self._wait(avoid)
            if not slot.is_cancelled:
                return slot
            self._release(slot)  # its server was left out before the request started

    async def _wait(self, avoid: str | None) -> _RequestSlot:
        waiting = _Waiting(avoid, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._assign()
        try:
            return await waiting.slot
        except asyncio.CancelledError:
            if not waiting.slot.cancelled():  # the request got a slot meanwhile
                self._release(waiting.slot.result())
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
            raise

    def _release(self, slot: _RequestSlot) -> None:
        slot.server.in_flight -= 1
        self._slots.discard(slot)
        self._assign()
        self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if not self.in_flight:
            for none_left in self._no_request:
                if not none_left.done():
                    none_left.set_result(None)
            self._no_request.clear()

    def _assign(self) -> None:
        """Gives free slots to the requests that have waited longest."""
        now = asyncio.get_running_loop().time()
        passed_over: list[_Waiting] = []
        while self._open and self._waiting and self._routing.choose(now):
            waiting = self._waiting.popleft()
            if waiting.slot.done():  # the request was cancelled, but is not removed yet
                continue
            server = self._routing.choose(now, waiting.avoid)
            if server is None:
                passed_over.append(waiting)
                continue
            server.in_flight += 1
            slot = _RequestSlot(server)
            self._slots.add(slot)
            waiting.slot.set_result(slot)
        self._waiting.extendleft(reversed(passed_over))
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        """Schedules `_assign` for the end of the next server's rest."""
        end = self._routing.next_end_of_a_rest(now) if self._waiting else None
        if self._timer and self._timer.when() != end:
            self._timer.cancel()
            self._timer = None
        if end is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(end, self._rest_ended)

    def _rest_ended(self) -> None:
        self._timer = None
        self._assign()

    def _cancel_requests(self, url: str) -> None:
        for slot in self._slots:
            if slot.server.url == url:
                slot.cancel()
