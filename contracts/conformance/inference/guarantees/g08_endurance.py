"""G8: over many updates under load, memory stays flat, labels stay right and no request is lost.

Measures memory, file descriptors, threads, processes and, by throughput, request slots, over many updates,
requests and groups.
"""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.first_spans import first_spans_off_by
from contracts.conformance.inference.growth import Growth
from contracts.conformance.inference.guarantees.g08_groups import check_groups
from contracts.conformance.inference.guarantees.g08_requests import check_requests
from contracts.conformance.inference.speed import Speed, check_speed, measure_speed
from contracts.conformance.inference.updates_under_load import (
    CLIENTS,
    Answers,
    updates_among_arrivals,
    updates_under_load,
)

CERTAIN = 3.0  # rule of three: if none of n is lost, fewer than 3 in n are, with 95 % confidence


async def updates(bench: Bench) -> str:
    """Makes many updates while clients send requests."""
    growth = Growth(bench)
    answers: Answers = []
    trainer = await bench.run()
    before = await _speeds(bench)
    await updates_under_load(bench, trainer, growth, answers)
    count = trainer.version - 1
    left = await _check_speeds(bench, before, f"{count} updates")
    worst = await first_spans_off_by(bench, answers)
    return (
        f"{count} updates under {CLIENTS * len(bench.servers)} clients: {len(answers)} answers, none lost "
        f"(with 95 % confidence fewer than 1 in {int(len(answers) / CERTAIN)}), off by {worst:.0e}; "
        f"{growth.describe()}; throughput x{left:.2f}"
    )


async def arrivals(bench: Bench) -> str:
    """Makes updates while short requests arrive."""
    await updates_among_arrivals(bench, await bench.run())
    return "others while requests arrived"


async def requests(bench: Bench) -> str:
    """Sends many requests of each kind."""
    growth = Growth(bench)
    await bench.run()
    before = await _speeds(bench)
    sent = await check_requests(bench, growth)
    left = await _check_speeds(bench, before, f"{sent} requests")
    return f"{sent} requests; {growth.describe()}; throughput x{left:.2f}"


async def groups(bench: Bench) -> str:
    """Joins many groups, and makes updates fail."""
    bench.end_run()
    growth = Growth(bench)
    before = await _speeds(bench)
    joined = await check_groups(bench, growth)
    left = await _check_speeds(bench, before, f"{joined} groups")
    return f"{joined} groups; {growth.describe()}; throughput x{left:.2f}"


PARTS = {
    "updates": updates,
    "arrivals": arrivals,
    "requests": requests,
    "groups": groups,
}


async def _speeds(bench: Bench) -> list[Speed | None]:
    """Returns the speed of each server before the first part. Measures it in the first part."""
    if not bench.speeds:
        bench.speeds.extend([await measure_speed(server, bench.reference) for server in bench.servers])
    return list(bench.speeds)


async def _check_speeds(bench: Bench, before: list[Speed | None], after: str) -> float:
    left = [
        await check_speed(server, bench.reference, speed, after)
        for server, speed in zip(bench.servers, before, strict=True)
        if speed
    ]
    return min(left, default=1.0)
