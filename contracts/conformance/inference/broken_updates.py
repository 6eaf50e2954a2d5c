"""Weight updates that fail midway because the trainer or another receiver ends. G7 uses them."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import cast

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.buckets import bucket_bytes_for, packed
from contracts.conformance.inference.group_processes import join_from, next_message
from contracts.conformance.inference.load import LONGEST_PROMPT, Tasks, check_finished, in_flight
from contracts.conformance.inference.recovery import check_failed_update, restarts, restore_service
from contracts.conformance.inference.repeated_versions import OTHER
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.trainer_process import GroupProcess, trainer
from contracts.conformance.verdicts import GuaranteeError
from contracts.inference import WeightUpdateStatus

BUCKETS = 4
CROWD = 32  # requests in flight
POINTS = {"after the 202": 0, "after the first bucket": 1, "before the last bucket": -1}


async def interrupted_by_trainer(bench: Bench, run: TrainerPeer, end: str, point: str, receive: str) -> float:
    """Returns the seconds until every server has reported how the update ended after the trainer failed."""
    what = f"the trainer is {end} {point} ({receive})"
    with closing(GroupProcess(trainer, bench.settings.address, bench.settings.timeout_s)) as process:
        await join_from(bench, run, process)
        crowd = bench.settings.thorough or (end, point) == ("killed", "after the first bucket")
        broken = _InterruptedUpdate(bench, run, process, what, receive, count=CROWD if crowd else 2)
        return await broken.update(POINTS[point], lambda: process.terminate(end))


async def interrupted_by_receiver(bench: Bench, run: TrainerPeer) -> float:
    """Returns the seconds until every server has reported the end, after another receiver was killed.

    The receiver is killed after the first bucket; the trainer keeps sending for as long as it can.
    """
    what = "a fellow receiver is killed after the first bucket"
    with (
        closing(GroupProcess(trainer, bench.settings.address, bench.settings.timeout_s)) as process,
        closing(cast(GroupProcess, await join_from(bench, run, process, second_receiver=True))) as second,
    ):
        first, *rest = packed(bench.weights(run.version + 1 + OTHER), _bucket_bytes(bench))
        second.send([first.numel()])

        def kill() -> None:
            second.receive(bench.settings.timeout_s)
            second.terminate("killed")
            process.send([bytes(bucket.numpy()) for bucket in rest])

        return await _InterruptedUpdate(bench, run, process, what, "paused", may_end_live=True).update(
            1, kill
        )


class _InterruptedUpdate:
    """One update that is interrupted. may_end_live: a server may have received every bucket, and succeed."""

    def __init__(
        self,
        bench: Bench,
        run: TrainerPeer,
        process: GroupProcess,
        what: str,
        receive: str,
        may_end_live: bool = False,
        count: int = 1,
    ):
        self.bench = bench
        self.run = run
        self.process = process
        self.what = what
        self.receive = receive
        self.may_end_live = may_end_live
        self.count = count  # number of requests in flight

    async def update(self, sent: int, end: Callable[[], None]) -> float:
        """Sends `sent` buckets and calls `end()`. Returns the seconds until all servers report it."""
        async with in_flight(self.bench, self.count, self._tokens()) as tasks:
            await self._send(sent)
            await asyncio.to_thread(end)
            began = asyncio.get_running_loop().time()
            statuses = await self.run.outcomes(self.run.version + 1)
            seconds = asyncio.get_running_loop().time() - began
            await self._check_outcomes(statuses)
            kept = [server for server in self.bench.servers if not await restarts(server)]
            await restore_service(self.bench, self.run, self.what)
            await self._check_requests([task for task in tasks if task[0] in kept], statuses)
        return seconds

    async def _send(self, sent: int) -> None:
        version = self.run.version + 1
        size = _bucket_bytes(self.bench)
        # After the failure, the version is sent again with other content, which reveals remains of this one.
        weights = self.bench.weights(version + OTHER)
        buckets = [bytes(bucket.numpy()) for bucket in packed(weights, size)[:sent]]
        timeout_s = self.bench.settings.timeout_s
        request = self.run.update_request(
            version, weights, bucket_bytes=size, receive=self.receive, timeout_s=timeout_s
        )
        modes = await self.bench.offered("kv_cache")
        request["kv_cache"] = modes[version % len(modes)]
        await self.run.request_update(request)
        if sent:
            self.process.send(buckets)
            await next_message(self.process, self.bench)

    async def _check_outcomes(self, statuses: list[WeightUpdateStatus]) -> None:
        for server, status in zip(self.bench.servers, statuses, strict=True):
            if self.may_end_live and status.state == "live":
                weights = self.bench.weights(status.version + OTHER)
                what = f"{self.what}, and it says live"
                await self.bench.check_content(server, weights, status.version, what)
            else:
                await check_failed_update(
                    self.bench, server, self.run.version, status, self.receive, self.what
                )

    async def _check_requests(self, tasks: Tasks, statuses: list[WeightUpdateStatus]) -> None:
        """Checks that requests in flight complete, or end with `weights_lost` if weights were touched."""
        by_server = dict(zip(self.bench.servers, statuses, strict=True))
        for server, task in tasks:
            try:
                check_finished(self.bench, server, await task, self._tokens())
            except GuaranteeError as error:
                if not (by_server[server].touched and "weights_lost" in error.measured):
                    raise

    def _tokens(self) -> int:
        return min(SHORT * 20, self.bench.context - LONGEST_PROMPT)


def _bucket_bytes(bench: Bench) -> int:
    return bucket_bytes_for(bench.weights(1), BUCKETS)
