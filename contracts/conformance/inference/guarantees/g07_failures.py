"""G7: a server never waits forever.

The trainer dies or stalls at each point of rendezvous and broadcast, another receiver dies, and another run
takes over. The server must respond in time, report correctly if its weights were touched, and recover in a
new epoch. It must wait for a trainer that is only slow.
"""

import asyncio
from contextlib import closing

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.broken_updates import (
    POINTS,
    interrupted_by_receiver,
    interrupted_by_trainer,
)
from contracts.conformance.inference.buckets import bucket_bytes_for, packed
from contracts.conformance.inference.group_processes import next_message
from contracts.conformance.inference.http_client import Answer
from contracts.conformance.inference.leaving import leaves_when_asked
from contracts.conformance.inference.load import MANY, check_finished, in_flight
from contracts.conformance.inference.mixed_load import cancelling
from contracts.conformance.inference.questions import polls_end_in_time
from contracts.conformance.inference.recovery import check_serving, restarts, restore_service
from contracts.conformance.inference.repeated_versions import not_finite, same_version_other_content
from contracts.conformance.inference.replaced_groups import (
    newer_epoch_replaces_a_forming_group,
    runs_in_a_row,
    takeover_aborts_update,
)
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.trainer_process import GroupProcess, trainer
from contracts.conformance.verdicts import GuaranteeError, NotDeclaredError

SLOWER = (1, 3)  # factors of timeout_s, for buckets that come slowly
RUNS = 3
MANY_RUNS = 20
JOIN = "/init_process_group"
JOIN_WAITS_S = 1.0  # longest wait of a join beyond the timeout_s of the update it waits for, by the contract


async def slow_trainer(bench: Bench) -> str:
    """Sends buckets slowly."""
    await _slow_trainer(bench, await bench.run())
    return "a slow trainer is waited for"


async def same_version(bench: Bench) -> str:
    """Sends the live version again, with the same and with other content."""
    await same_version_other_content(bench, await bench.run())
    return "a version is received again"


async def forming_group(bench: Bench) -> str:
    """Replaces a group that is being joined."""
    await newer_epoch_replaces_a_forming_group(bench, await bench.run())
    return "a forming group is replaced"


async def polls(bench: Bench) -> str:
    """Waits for the end of an update with many requests."""
    await polls_end_in_time(bench, await bench.run())
    return "status requests end in time"


async def infinities(bench: Bench) -> str:
    """Sends weights that are not finite."""
    await not_finite(bench, await bench.run())
    return "what is not finite fails"


async def takeover(bench: Bench) -> str:
    """Takes a run over while requests are in flight."""
    await _taken_over(bench)
    return "a takeover aborts requests"


async def takeover_in_update(bench: Bench) -> str:
    """Takes a run over while a version is received."""
    await takeover_aborts_update(bench)
    return "and calls an update off"


async def runs(bench: Bench) -> str:
    """Takes runs over one after the other."""
    bench.end_run()
    await runs_in_a_row(bench, MANY_RUNS if bench.settings.thorough else RUNS)
    return "runs take over in a row"


async def killed(bench: Bench) -> str:
    """Kills the trainer at each point of rendezvous and broadcast."""
    return await _interrupted(bench, "killed", await bench.receive_modes())


async def stalled(bench: Bench) -> str:
    """Stalls the trainer at each point of rendezvous and broadcast."""
    return await _interrupted(bench, "stalled", ["paused"])


async def receiver(bench: Bench) -> str:
    """Kills another receiver."""
    seconds = await interrupted_by_receiver(bench, await bench.run())
    limit = f"timeout {bench.settings.timeout_s:g} s"
    return f"a fellow receiver killed: answered within {seconds:.1f} s ({limit}), restored each time"


async def leaving(bench: Bench) -> str:
    """Asks the servers to leave the group."""
    if "leave_group" not in await bench.offered("capabilities"):
        raise NotDeclaredError("leave_group is not offered")
    await leaves_when_asked(bench, await bench.run())
    return "servers leave the group when asked"


PARTS = {
    "slow-trainer": slow_trainer,
    "same-version": same_version,
    "forming-group": forming_group,
    "polls": polls,
    "leaving": leaving,
    "infinities": infinities,
    "takeover": takeover,
    "takeover-in-update": takeover_in_update,
    "runs": runs,
    "killed": killed,
    "stalled": stalled,
    "receiver": receiver,
}


async def _interrupted(bench: Bench, end: str, receives: list[str]) -> str:
    """Interrupts updates at each point. end: `killed` or `stalled`."""
    run = await bench.run()
    slowest = await _before_joining(bench, run, end)
    for receive in receives:
        for point in POINTS:
            slowest = max(slowest, await interrupted_by_trainer(bench, run, end, point, receive))
    return f"trainer {end} at {len(POINTS) + 1} points: answered within {slowest:.1f} s"


async def _slow_trainer(bench: Bench, run: TrainerPeer) -> None:
    """Checks that `timeout_s` limits the time between two buckets, not the total time.

    On a busy machine a pause may exceed the timeout. Then tries a longer timeout.
    """
    for factor in SLOWER:
        try:
            return await _slow_update(bench, run, factor * bench.settings.timeout_s)
        except GuaranteeError:
            if factor == SLOWER[-1]:
                raise
            run.epoch += 1  # epoch of the join during the update
            await restore_service(bench, run, "an update whose buckets came slowly has failed")


async def _slow_update(bench: Bench, run: TrainerPeer, timeout_s: float) -> None:
    version = run.version + 1
    pause_s = 0.6 * timeout_s
    size = bucket_bytes_for(bench.weights(version), 4)
    buckets = packed(bench.weights(version), size)
    what = f"{len(buckets)} buckets, {pause_s:g} s apart, with timeout_s {timeout_s:g}"
    weights = bench.weights(version)
    await run.request_update(run.update_request(version, weights, bucket_bytes=size, timeout_s=timeout_s))
    requests = await run.join_requests(port=1, epoch=run.epoch + 1)
    joins = asyncio.create_task(run.post_each(JOIN, requests))
    async with cancelling([joins]):
        for number, bucket in enumerate(buckets, 1):
            await asyncio.sleep(pause_s)
            try:
                await run.send([bucket])
            except RuntimeError as error:
                raise GuaranteeError(
                    f"the broadcast failed: {error}", "a slow trainer is waited for", what
                ) from error
            if number * pause_s > timeout_s + JOIN_WAITS_S:
                await _check_joins(run, version, joins, f"{what}; a join of the next epoch meanwhile")
    await run.wait_until_live(version, sum(bucket.nbytes for bucket in buckets), what)


async def _check_joins(run: TrainerPeer, version: int, joins: asyncio.Task[list[Answer]], what: str) -> None:
    """Checks that joins were refused by now, unless the update that they waited for has ended."""
    states = [(await server.get(f"/weight_update/{version}"))[1].get("state") for server in run.servers]
    answers = joins.result() if joins.done() else []
    codes = {(status, body.get("error", {}).get("code")) for status, body in answers}
    if codes != {(409, "update_in_progress")} and set(states) == {"receiving"}:
        raise GuaranteeError(
            f"POST {JOIN}: {answers or 'no answer'}",
            f"409 update_in_progress, the update's timeout_s and {JOIN_WAITS_S:g} s after the join at most",
            what,
        )


async def _taken_over(bench: Bench) -> None:
    """Checks that requests in flight end with `abort` when a run at a lower version takes over.

    Increases the number of requests until even a fast server has some in flight at that moment.
    """
    what = "a run at version 1 is taken over by one at version 0"
    in_lines = "as_completed" in await bench.offered("capabilities")
    count = forms = 2 if in_lines else 1
    ended = "nothing"
    tokens = min(480, bench.context - 32)
    while count <= MANY:
        other = bench.trainer()
        async with bench.new_run(), in_flight(bench, count, tokens, in_lines) as tasks:
            try:
                await other.join()
                samples = [(server, await task) for server, task in tasks]
                await other.publish(0, bench.weights(0))
                for server in bench.servers:
                    await bench.check_content(server, bench.weights(0), 0, what)
            finally:
                other.leave()
        for server, sample in samples:
            if sample.finish_reason != "abort":
                check_finished(bench, server, sample, tokens)
        aborted = {
            (server, number % forms)
            for number, (server, sample) in enumerate(samples)
            if sample.finish_reason == "abort"
        }
        if len(aborted) == forms * len(bench.servers):
            return
        ended = f"{count} requests of {tokens} tokens with length or stop"
        count *= 8
    raise GuaranteeError(f"requests in flight ended: {ended}", "abort", what)


async def _before_joining(bench: Bench, run: TrainerPeer, end: str) -> float:
    """Ends the trainer before it joins. Returns the seconds until every server has reported the timeout."""
    what = f"the trainer is {end} before it joins"
    with closing(GroupProcess(trainer, bench.settings.address, bench.settings.timeout_s)) as process:
        port = await next_message(process, bench)
        requests = await run.join_requests(port, epoch=run.epoch + 1)
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(run.post_each("/init_process_group", requests))
        await asyncio.wait([asking], timeout=0.3)  # so that the servers are connected to the store
        process.terminate(end)
        limit = bench.settings.timeout_s + bench.settings.grace_s
        await asyncio.wait([asking], timeout=limit)
        if not asking.done():
            asking.cancel()
            raise GuaranteeError(
                f"no answer to POST /init_process_group after {limit:g} s: {what}",
                f"504 rendezvous_timeout within timeout_s + {bench.settings.grace_s:g} s",
                f"{what}, with timeout_s {bench.settings.timeout_s:g}",
            )
        seconds = asyncio.get_running_loop().time() - began
        for server, (status, body) in zip(bench.servers, asking.result(), strict=True):
            if (status, body.get("error", {}).get("code")) != (504, "rendezvous_timeout"):
                raise GuaranteeError(f"{server}: {status} {body}", "504 rendezvous_timeout", what)
    for server in bench.servers:
        if not await restarts(server):
            await check_serving(bench, server, run.version, what)
    await restore_service(bench, run, what)
    return seconds
