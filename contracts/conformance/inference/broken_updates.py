"""Weight updates that break on the way, because the trainer or another receiver ends. For G7."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.load import Tasks, in_flight, whole
from contracts.conformance.inference.recovery import honest, restored, serves
from contracts.conformance.inference.trainer_peer import TrainerEnd, bucket_bytes_for, packed
from contracts.conformance.inference.trainer_process import GroupProcess, GroupSpec, receiver, trainer
from contracts.conformance.verdicts import Broken
from contracts.inference import WeightUpdateStatus

BUCKETS = 4
POINTS = {"after the 202": 0, "after the first bucket": 1, "before the last bucket": -1}


async def trainer_ends(bench: Bench, run: TrainerEnd, end: str, point: str, receive: str) -> float:
    """Seconds until every server has said how the update ended."""
    what = f"the trainer is {end} {point} ({receive})"
    with closing(GroupProcess(trainer, bench.settings.address, bench.settings.timeout_s)) as process:
        await _joined_from(bench, run, process)
        broken = _Broken(bench, run, process, what, receive)
        return await broken.update(POINTS[point], lambda: process.end(end))


async def fellow_killed(bench: Bench, run: TrainerEnd) -> float:
    """A third member of the group dies after the first bucket; the trainer sends on as long as it can."""
    what = "a fellow receiver is killed after the first bucket"
    with (
        closing(GroupProcess(trainer, bench.settings.address, bench.settings.timeout_s)) as process,
        closing(cast(GroupProcess, await _joined_from(bench, run, process, fellow=True))) as fellow,
    ):
        first, *rest = packed(bench.weights(run.version + 1), _bucket_bytes(bench))
        fellow.tell([first.numel()])

        def kill() -> None:
            fellow.heard(bench.settings.timeout_s)
            fellow.end("killed")
            process.tell([bytes(bucket.numpy()) for bucket in rest])

        return await _Broken(bench, run, process, what, "paused", may_end_live=True).update(1, kill)


class _Broken:
    """One update that is to break. `may_end_live` where every bucket may have reached a server."""

    def __init__(
        self,
        bench: Bench,
        run: TrainerEnd,
        process: GroupProcess,
        what: str,
        receive: str,
        may_end_live: bool = False,
    ):
        self.bench, self.run, self.process = bench, run, process
        self.what, self.receive, self.may_end_live = what, receive, may_end_live

    async def update(self, sent: int, end: Callable[[], None]) -> float:
        """Sends `sent` buckets and calls `end()`. Seconds until every server has said how it ended."""
        async with in_flight(self.bench, 1, self._tokens()) as tasks:
            await self._send(sent)
            await asyncio.to_thread(end)
            began = asyncio.get_running_loop().time()
            statuses = await self.run.ended(self.run.version + 1)
            seconds = asyncio.get_running_loop().time() - began
            await self._judge(statuses)
            await restored(self.bench, self.run, self.what)
            await self._whole(tasks, statuses)
        return seconds

    async def _send(self, sent: int) -> None:
        version, size = self.run.version + 1, _bucket_bytes(self.bench)
        weights = self.bench.weights(version)
        buckets = [bytes(bucket.numpy()) for bucket in packed(weights, size)[:sent]]
        request = self.run.update_request(version, weights, bucket_bytes=size, receive=self.receive)
        await self.run.request_update(request)
        if sent:
            self.process.tell(buckets)
            await heard(self.process, self.bench)

    async def _judge(self, statuses: list[WeightUpdateStatus]) -> None:
        for server, status in zip(self.bench.servers, statuses, strict=True):
            if self.may_end_live and status.state == "live":
                await serves(self.bench, server, status.version, f"{self.what}, and it says live")
            else:
                await honest(self.bench, server, self.run.version, status, self.receive, self.what)

    async def _whole(self, tasks: Tasks, statuses: list[WeightUpdateStatus]) -> None:
        """Requests in flight survive; those that lost weights held may have ended with `weights_lost`."""
        for (server, task), status in zip(tasks, statuses, strict=True):
            try:
                whole(self.bench, server, await task, self._tokens())
            except Broken as error:
                if not (status.touched and "weights_lost" in error.measured):
                    raise

    def _tokens(self) -> int:
        return min(SHORT * 20, self.bench.context - 16)


async def _joined_from(
    bench: Bench, run: TrainerEnd, process: GroupProcess, fellow: bool = False
) -> GroupProcess | None:
    """The next epoch, whose rank 0 is in `process`; the other process of the group, if one is wanted."""
    run.leave()
    run.epoch += 1
    port = await heard(process, bench)
    requests = await run.join_requests(port, fellows=int(fellow))
    first = requests[0]
    spec = GroupSpec(
        first["group_name"], bench.settings.address, first["world_size"], first["backend"], first["timeout_s"]
    )
    other = GroupProcess(receiver, spec, port, spec.world_size - 1) if fellow else None
    try:
        if other:
            await heard(other, bench)
        process.tell(spec)
        answers = await run.post_each("/init_process_group", requests)
        for server, (status, body) in zip(bench.servers, answers, strict=True):
            if status != 200:
                raise Broken(f"{server}: POST /init_process_group: {status} {body}", "200", "join an epoch")
        await heard(process, bench)
        if other:
            await heard(other, bench)
        return other
    except BaseException:
        if other:
            other.close()
        raise


async def heard(process: GroupProcess, bench: Bench) -> Any:
    return await asyncio.to_thread(process.heard, bench.settings.timeout_s + 30)


def _bucket_bytes(bench: Bench) -> int:
    return bucket_bytes_for(bench.weights(1), BUCKETS)
