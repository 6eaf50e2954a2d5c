"""G7: nothing waits for ever. The trainer dies, or stalls, at each point of rendezvous and broadcast; a
fellow receiver dies; another run takes over. The server answers in time, says truly whether its weights
were touched, and a new epoch restores it."""

import asyncio
import functools
from collections.abc import Callable
from contextlib import closing

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.load import started, whole
from contracts.conformance.inference.recovery import honest, restored, serves
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.trainer_end import TrainerEnd, bucket_bytes_for, packed
from contracts.conformance.inference.trainer_process import GroupProcess, GroupSpec, receiver, trainer
from contracts.conformance.verdicts import Broken

BUCKETS = 4
POINTS = {"after the 202": 0, "after the first bucket": 1, "before the last bucket": -1}


async def failures(bench: Bench) -> str:
    receive, slowest = (await bench.receive_modes())[-1], 0.0
    async with bench.new_run() as run:
        await _same_version_again(bench, run)
        await _taken_over(bench, run)
    async with bench.new_run() as run:
        for end in ("killed", "stalled"):
            slowest = max(slowest, await _before_joining(bench, run, end))
            for point in POINTS:
                mode = receive if point == "after the first bucket" and end == "killed" else "paused"
                slowest = max(slowest, await _in_broadcast(bench, run, end, point, mode))
        slowest = max(slowest, await _fellow_killed(bench, run))
    return (
        f"trainer killed and stalled at {len(POINTS) + 1} points, a fellow receiver killed: answered within "
        f"{slowest:.1f} s (timeout {bench.timeout_s:g} s), restored each time; taken over, backwards"
    )


async def _before_joining(bench: Bench, run: TrainerEnd, end: str) -> float:
    """The store is there, rank 0 never comes. Seconds until every server has said so."""
    what = f"the trainer is {end} before it joins"
    with closing(GroupProcess(trainer, bench.timeout_s)) as process:
        port = await _heard(process, bench)
        requests = await run.join_requests(port, epoch=run.epoch + 1)
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(run.post_each("/init_process_group", requests))
        await asyncio.wait([asking], timeout=0.3)  # the servers are at the store by then
        _end(process, end)
        limit = bench.timeout_s + bench.grace_s
        await asyncio.wait([asking], timeout=limit)
        if not asking.done():
            asking.cancel()
            raise Broken(
                f"no answer to POST /init_process_group after {limit:g} s: {what}",
                f"504 rendezvous_timeout within timeout_s + {bench.grace_s:g} s",
                f"{what}, with timeout_s {bench.timeout_s:g}",
            )
        seconds = asyncio.get_running_loop().time() - began
        for server, (status, body) in zip(bench.servers, asking.result(), strict=True):
            if (status, body.get("error", {}).get("code")) != (504, "rendezvous_timeout"):
                raise Broken(f"{server}: {status} {body}", "504 rendezvous_timeout", what)
    for server in bench.servers:
        await serves(bench, server, run.version, what)
    await restored(bench, run, what)
    return seconds


async def _in_broadcast(bench: Bench, run: TrainerEnd, end: str, point: str, receive: str) -> float:
    what = f"the trainer is {end} {point} ({receive})"
    with closing(GroupProcess(trainer, bench.timeout_s)) as process:
        await _joined_from(bench, run, process)
        return await _broken(
            bench, run, process, functools.partial(_end, process, end), POINTS[point], receive, what
        )


async def _fellow_killed(bench: Bench, run: TrainerEnd) -> float:
    """A third member of the group dies after the first bucket; the trainer sends on as long as it can."""
    what = "a fellow receiver is killed after the first bucket"
    with (
        closing(GroupProcess(trainer, bench.timeout_s)) as process,
        closing(await _joined_from(bench, run, process, fellow=True)) as fellow,
    ):
        first, *rest = packed(bench.reference.weights(run.version + 1), _bucket_bytes(bench))
        fellow.tell([first.numel()])

        def kill() -> None:
            fellow.heard(bench.timeout_s)
            fellow.kill()
            process.tell([bytes(bucket.numpy()) for bucket in rest])

        return await _broken(bench, run, process, kill, 1, "paused", what, may_end_live=True)


async def _broken(
    bench: Bench,
    run: TrainerEnd,
    process: GroupProcess,
    end: Callable[[], None],
    sent: int,
    receive: str,
    what: str,
    may_end_live: bool = False,
) -> float:
    """An update of which `sent` buckets are sent before `end()`. Seconds until every server has said how
    it ended: `live` only where every bucket may have reached it."""
    version = run.version + 1
    weights = bench.reference.weights(version)
    in_flight = [(await started(bench, server, 1, _long(bench)))[0] for server in bench.servers]
    request = run.update_request(version, weights, bucket_bytes=_bucket_bytes(bench), receive=receive)
    await run.request_update(request)
    if sent:
        buckets = packed(weights, _bucket_bytes(bench))[:sent]
        process.tell([bytes(bucket.numpy()) for bucket in buckets])
        await _heard(process, bench)
    await asyncio.to_thread(end)
    began = asyncio.get_running_loop().time()
    statuses = await run.ended(version)
    seconds = asyncio.get_running_loop().time() - began
    for server, status in zip(bench.servers, statuses, strict=True):
        if may_end_live and status["state"] == "live":
            await serves(bench, server, version, f"{what}, and version {version} is live")
        else:
            await honest(bench, server, run.version, status, receive, what)
    await restored(bench, run, what)
    for server, task in zip(bench.servers, in_flight, strict=True):
        whole(bench, server, await task, _long(bench))
    return seconds


async def _same_version_again(bench: Bench, run: TrainerEnd) -> None:
    """After a rebuilt group some members hold the version that is sent already: they take part."""
    await run.join()
    await run.publish(run.version, bench.reference.weights(run.version))
    for server in bench.servers:
        await serves(bench, server, run.version, f"version {run.version} is sent again in a new epoch")


async def _taken_over(bench: Bench, run: TrainerEnd) -> None:
    """Another run, at a lower version; what is in flight ends with `abort`."""
    tasks = [(await started(bench, server, 1, _long(bench)))[0] for server in bench.servers]
    other = bench.trainer()
    try:
        await other.join()
        aborted: list[Sample] = await asyncio.gather(*tasks)
        await other.publish(0, bench.reference.weights(0))
        what = f"a run at version {run.version} is taken over by one at version 0"
        for server, sample in zip(bench.servers, aborted, strict=True):
            if sample.finish_reason != "abort":
                raise Broken(f"{server}: a request ended with {sample.finish_reason!r}", "abort", what)
            await bench.content(server, bench.reference.weights(0), 0, what)
    finally:
        other.leave()


async def _joined_from(
    bench: Bench, run: TrainerEnd, process: GroupProcess, fellow: bool = False
) -> GroupProcess | None:
    """The next epoch, whose rank 0 is in `process`; the other process of the group, if one is wanted."""
    run.leave()
    run.epoch += 1
    port = await _heard(process, bench)
    requests = await run.join_requests(port, fellows=int(fellow))
    first = requests[0]
    spec = GroupSpec(first["group_name"], first["world_size"], first["backend"], bench.timeout_s)
    other = GroupProcess(receiver, spec, port, spec.world_size - 1) if fellow else None
    if other:
        await _heard(other, bench)
    process.tell(spec)
    for server, (status, body) in zip(
        bench.servers, await run.post_each("/init_process_group", requests), strict=True
    ):
        if status != 200:
            raise Broken(f"{server}: POST /init_process_group: {status} {body}", "200", "join a new epoch")
    await _heard(process, bench)
    if other:
        await _heard(other, bench)
    return other


async def _heard(process: GroupProcess, bench: Bench) -> object:
    return await asyncio.to_thread(process.heard, bench.timeout_s + 30)


def _end(process: GroupProcess, end: str) -> None:
    if end == "killed":
        process.kill()
    else:
        process.stall()


def _bucket_bytes(bench: Bench) -> int:
    return bucket_bytes_for(bench.reference.weights(1), BUCKETS)


def _long(bench: Bench) -> int:
    return min(SHORT * 20, bench.reference.context - 16)
