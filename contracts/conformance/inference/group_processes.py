"""Runs rank 0 of a weight group, and an additional receiver, in processes that a check can end."""

import asyncio
from typing import Any

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.inference.trainer_process import GroupProcess, GroupSpec, receiver
from contracts.conformance.verdicts import GuaranteeError


async def join_from(
    bench: Bench, run: TrainerPeer, process: GroupProcess, second_receiver: bool = False
) -> GroupProcess | None:
    """Joins the next epoch with rank 0 in `process`. Returns the second receiver's process, if requested."""
    run.leave()
    run.epoch += 1
    port = await next_message(process, bench)
    requests = await run.join_requests(port, extra_ranks=int(second_receiver))
    first = requests[0]
    spec = GroupSpec(
        first["group_name"], bench.settings.address, first["world_size"], first["backend"], first["timeout_s"]
    )
    other = GroupProcess(receiver, spec, port, spec.world_size - 1) if second_receiver else None
    try:
        if other:
            await next_message(other, bench)
        process.send(spec)
        answers = await run.post_each("/init_process_group", requests)
        for server, (status, body) in zip(bench.servers, answers, strict=True):
            if status != 200:
                raise GuaranteeError(
                    f"{server}: POST /init_process_group: {status} {body}", "200", "join an epoch"
                )
        await next_message(process, bench)
        if other:
            await next_message(other, bench)
        return other
    except BaseException:
        if other:
            other.close()
        raise


async def next_message(process: GroupProcess, bench: Bench) -> Any:
    """Waits for the next message of `process` without blocking the event loop."""
    return await asyncio.to_thread(process.receive, bench.settings.timeout_s + 30)
