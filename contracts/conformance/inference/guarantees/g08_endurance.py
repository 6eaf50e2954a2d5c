"""G8: over many updates under load, memory stays flat, labels stay right and no request is lost.

All resources of a server are measured: memory, file descriptors, threads, processes and slots. Slots show in
measured throughput. The server gets many updates and requests, then many channels, then many groups.
"""

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.first_spans import first_spans_off_by
from contracts.conformance.inference.growth import Growth
from contracts.conformance.inference.guarantees.g08_channels import check_channels
from contracts.conformance.inference.guarantees.g08_groups import check_groups
from contracts.conformance.inference.guarantees.g08_requests import check_requests
from contracts.conformance.inference.speed import Speed, check_speed, measure_speed
from contracts.conformance.inference.updates_under_load import (
    CLIENTS,
    Answers,
    updates_among_arrivals,
    updates_under_load,
)

CERTAIN = 3.0  # the rule of three: none of n lost means fewer than 3 in n with 95 % confidence


async def endurance(bench: Bench) -> str:
    """Makes updates, channels, groups and requests in large numbers: nothing may be lost or leak."""
    growth = Growth(bench)
    answers: Answers = []
    async with bench.new_run() as trainer:
        before = await _speeds(bench)
        await updates_under_load(bench, trainer, growth, answers)
        updates = trainer.version - 1
        left = await _check_speeds(bench, before, f"{updates} updates")
        worst = await first_spans_off_by(bench, answers)
        await updates_among_arrivals(bench, trainer)
        requests = await check_requests(bench, growth)
    channels = await check_channels(bench, growth)
    groups = await check_groups(bench, growth)
    left = min(left, await _check_speeds(bench, before, f"{groups} groups and {requests} requests"))
    return (
        f"{updates} updates under {CLIENTS * len(bench.servers)} clients: {len(answers)} answers, none lost "
        f"(with 95 % confidence fewer than 1 in {int(len(answers) / CERTAIN)}), off by {worst:.0e}; "
        f"{groups} groups, {channels}, {requests} requests; {growth.describe()}; throughput x{left:.2f}"
    )


async def _speeds(bench: Bench) -> list[Speed | None]:
    """Returns the speed of each server at the kit's start, or otherwise its speed now."""
    first = bench.speeds or [None] * len(bench.servers)
    return [
        speed or await measure_speed(server, bench.reference)
        for server, speed in zip(bench.servers, first, strict=True)
    ]


async def _check_speeds(bench: Bench, before: list[Speed | None], after: str) -> float:
    """Returns the smallest remaining share of the throughput."""
    left = [
        await check_speed(server, bench.reference, speed, after)
        for server, speed in zip(bench.servers, before, strict=True)
        if speed
    ]
    return min(left, default=1.0)
