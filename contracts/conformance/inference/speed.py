"""Measures how fast a server generates, and compares it with its earlier speed. G8 calls it.

A leaked slot, cache block or lock reduces throughput.
"""

import asyncio
import time
from dataclasses import dataclass

import psutil

from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

AT_A_TIME = 16  # requests that run concurrently
TOKENS = 32  # tokens of each request
SINGLE = 5  # requests of one token, one after the other; the fastest counts
SLOWER = 0.65  # share of the earlier throughput that must remain
LATER = 2.0  # factor by which latency may grow
BUSY = 0.15  # share of processors in use, with an idle server, above which this machine is busy
BUSY_SLOWER = 0.3  # replaces SLOWER on a busy machine, as BUSY_LATER replaces LATER
BUSY_LATER = 5.0
SLACK_S = 0.02
TRIES = 6  # measurements before a verdict
PAUSE_S = 2.0  # between two measurements, in which other load may end
IDLE_S = 0.2  # time without requests for measuring the machine's load
STEPS = 200_000  # iterations of the loop that measures this machine


@dataclass(frozen=True)
class Speed:
    """The measurements of one server."""

    tokens_per_s: float  # of AT_A_TIME concurrent requests
    latency_s: float  # of a request of one token
    machine_s: float  # seconds that a fixed computation took on this machine at that time
    busy: float  # share of this machine's processors in use before the requests were sent

    def left_of(self, earlier: "Speed") -> float:
        """Returns the share of the earlier throughput, corrected for a slowdown of this machine."""
        return self.tokens_per_s / earlier.tokens_per_s * self._slowdown(earlier)

    def is_as_good_as(self, earlier: "Speed") -> bool:
        """Returns True if throughput and latency are similar to the earlier ones."""
        latency = self.latency_s / self._slowdown(earlier)
        slower, later = (BUSY_SLOWER, BUSY_LATER) if self.busy > BUSY else (SLOWER, LATER)
        return self.left_of(earlier) >= slower and latency <= later * earlier.latency_s + SLACK_S

    def _slowdown(self, earlier: "Speed") -> float:
        return max(1.0, self.machine_s / earlier.machine_s)


async def measure_speed(server: Server, reference: Reference) -> Speed | None:
    """Measures the server's speed. Returns None if completions end too early."""
    busy = await _busy()
    latency = min([await _seconds_of_one(server, reference, i) for i in range(SINGLE)])
    machine = _machine_seconds()
    prompts = [reference.prompt(8, seed=9000 + i) for i in range(AT_A_TIME)]
    began = time.monotonic()
    found = await asyncio.gather(*(server.complete(p, TOKENS, temperature=1) for p in prompts))
    seconds = time.monotonic() - began
    tokens = sum(len(sample.token_ids) for sample in found)
    if tokens < AT_A_TIME * TOKENS // 2:
        return None
    return Speed(tokens / seconds, latency, machine, busy)


async def check_speed(server: Server, reference: Reference, earlier: Speed, after: str) -> float:
    """Returns the remaining share of throughput. Raises GuaranteeError if every measurement is worse."""
    best = None
    for i in range(TRIES):
        if i:
            await asyncio.sleep(PAUSE_S)
        speed = await measure_speed(server, reference)
        if speed is None or speed.is_as_good_as(earlier):
            return speed.left_of(earlier) if speed else 1.0
        if best is None or speed.tokens_per_s > best.tokens_per_s:
            best = speed
    assert best is not None
    raise GuaranteeError(
        f"{best.tokens_per_s:.0f} tokens a second and {1000 * best.latency_s:.0f} ms for one token after "
        f"{after}; before them {earlier.tokens_per_s:.0f} and {1000 * earlier.latency_s:.0f} ms",
        f"at least {SLOWER:g} of the throughput and at most {LATER:g} times the latency, in one of {TRIES} "
        "measurements: what a server has done takes none of its slots",
        f"{server}: {AT_A_TIME} completions of {TOKENS} tokens side by side, before and after {after}",
    )


async def _seconds_of_one(server: Server, reference: Reference, i: int) -> float:
    prompt = reference.prompt(8, seed=8000 + i)
    began = time.monotonic()
    await server.complete(prompt, 1)
    return time.monotonic() - began


async def _busy() -> float:
    """Returns the share of this machine's processors in use while the kit sends no requests."""
    psutil.cpu_percent(None)
    await asyncio.sleep(IDLE_S)
    return float(psutil.cpu_percent(None)) / 100


def _machine_seconds() -> float:
    """Returns the seconds of a fixed computation, which takes longer on a busy machine."""
    began = time.monotonic()
    total = 0
    for i in range(STEPS):
        total += i
    return time.monotonic() - began
