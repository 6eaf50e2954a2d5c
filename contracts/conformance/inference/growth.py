"""Detects growth of a server's resources with the work that it has done. G8 calls it.

Figures come from `/contract`, and from the operating system if the server runs on this machine.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import psutil

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.footprint import processes_of
from contracts.conformance.inference.readings import (
    ANSWER,
    COUNTED,
    MIB,
    NAMES,
    REPORTED,
    RESIDENT,
    TAKES,
    Reading,
    Readings,
    amount,
    differences,
)
from contracts.conformance.verdicts import GuaranteeError

ROUNDS = 4  # most rounds of events; each figure must stay flat in one of them
NOISE = 4 * MIB  # bytes by which memory may grow after the first quarter of a round, with any model
COPIES = 2  # copies of the weights by which memory may grow in addition
RARE = 8  # actions per descriptor, thread or process that may remain
FEW = 3  # descriptors, threads or processes that any round may add
ANSWER_BYTES = 512  # bytes by which a response may grow in a round
SETTLE = 2  # multiple of grace_s in which resources may still be freed
SLOWER_MS = 150  # milliseconds by which an event may take longer in a round


class Growth:
    """Reads the servers' figures and compares them. worst: largest growth in flat rounds, by figure."""

    def __init__(self, bench: Bench):
        self.bench = bench
        self.processes = {server.url: processes_of(server.url) for server in bench.servers}
        self.copies = COPIES * sum(tensor.nbytes for tensor in bench.weights(1).values())
        self.worst: Reading = {}

    async def check_flat(
        self, event: Callable[[], Awaitable[float]], count: int, what: str, actions: int = 1
    ) -> None:
        """Repeats `event` in rounds of `count` until every figure has stayed flat in some round.

        event: performs `actions` actions of the kind `what`, and returns the seconds of one. An engine may
        fill caches in the first rounds, but a leak grows in every round. Raises GuaranteeError for a leak.
        """
        growing: Readings = {}  # figures that have grown in every round so far
        first: list[Readings] = []  # readings at the beginning of the first round
        rounds = 0

        def still_grows(found: Readings) -> bool:
            """Returns True if a figure that grew in all earlier rounds has grown again.

            A figure that falls between rounds is not a leak, even if it grows within each round.
            """
            added = differences(first, after)
            for url, growth in found.items():
                allowed = {name: self._allowed(name, count * actions) for name in growth}
                over = {
                    name: by
                    for name, by in growth.items()
                    if by > allowed[name] and added[url].get(name, by) > rounds * allowed[name]
                }
                earlier = growing.get(url, over)
                growing[url] = {name: by for name, by in over.items() if name in earlier}
            return any(growing.values())

        for _ in range(ROUNDS):
            before, after = await self._round(event, count)
            first = first or before
            rounds += 1
            found = differences(before, after)
            if not still_grows(found):
                self._record_growth(found)
                return
        if await self._settles(before, after, still_grows):
            return
        url, growth = next((url, growth) for url, growth in growing.items() if growth)
        name = next(iter(growth))
        between = (count - count // 4) * actions
        raise GuaranteeError(
            f"{name}: {amount(name, growth[name])} more after {between} {what}, in each of {ROUNDS} rounds",
            f"at most {amount(name, self._allowed(name, count * actions))} more in one of the rounds: "
            "what a server holds does not grow with what it has done",
            f"{url}: {ROUNDS * count * actions} {what}, and count {name}",
        )

    async def _round(
        self, event: Callable[[], Awaitable[float]], count: int
    ) -> tuple[list[Readings], list[Readings]]:
        """Runs a round. Returns readings after the first quarter of the events, and after the last events."""
        few = max(1, count // 8)
        first = range(count // 4 - 1, count // 4 - 1 + few)
        last = range(count - few, count)
        before: list[Readings] = []
        after: list[Readings] = []
        for i in range(count):
            seconds = await event()
            if i in first or i in last:
                (before if i in first else after).append(await self._read(seconds))
        return before, after

    async def _settles(
        self, before: list[Readings], after: list[Readings], still_grows: Callable[[Readings], bool]
    ) -> bool:
        """Returns True if the figures fall without requests, for example when idle connections close."""
        taken = min(reading[TAKES] for readings in after for reading in readings.values())
        for _ in range(int(SETTLE * self.bench.settings.grace_s)):
            await asyncio.sleep(1)
            if not still_grows(differences(before, [await self._read(taken / 1000)])):
                return True
        return False

    async def _read(self, seconds: float) -> Readings:
        readings = {}
        for server in self.bench.servers:
            told = (await server.contract()).process.resident_bytes
            size = len(json.dumps((await server.get("/contract"))[1]))
            reading = {REPORTED: told, ANSWER: size, TAKES: round(1000 * seconds)}
            if processes := self.processes[server.url]:
                try:
                    held = asdict(processes.footprint())
                except psutil.Error:  # the server was restarted as another process
                    self.processes[server.url] = processes_of(server.url)
                else:
                    reading |= {NAMES.get(name, name): value for name, value in held.items()}
            readings[server.url] = reading
        return readings

    def _allowed(self, name: str, actions: int) -> int:
        if name in (REPORTED, RESIDENT):
            return NOISE + self.copies
        fixed = {ANSWER: ANSWER_BYTES, TAKES: SLOWER_MS}
        return fixed.get(name, max(FEW, actions // RARE))

    def _record_growth(self, found: Readings) -> None:
        for growth in found.values():
            for name, by in growth.items():
                self.worst[name] = max(by, self.worst.get(name, by))

    def describe(self) -> str:
        """Returns `worst` as text."""
        seen = RESIDENT if RESIDENT in self.worst else REPORTED
        parts = [f"memory {self.worst[seen] / MIB:+.1f} of {(NOISE + self.copies) / MIB:.1f} MiB"]
        if seen == RESIDENT:
            parts += [f"{name} {self.worst[name]:+d}" for name in COUNTED if name in self.worst]
        else:
            parts.append("descriptors and threads not seen from here")
        return ", ".join(parts)
