"""Sleeps many times, and compares the memory of the first and of the last times. G19 calls it."""

from contracts.conformance.inference.bench import FEW, Bench
from contracts.conformance.inference.server import Server
from contracts.conformance.inference.sleeps import SLEEP, put_to_sleep, wake
from contracts.conformance.inference.trainer_peer import TrainerPeer
from contracts.conformance.verdicts import GuaranteeError

SEEN = 2**26  # bytes from which the release of memory is seen beside a process's noise
FREED = 0.5  # share of the weights' bytes to be released; of released bytes by which resident memory falls


async def memory_stays_flat(bench: Bench, trainer: TrainerPeer, count: int) -> None:
    """Lets each server sleep `count` times, and wakes it by updates and by `/wake` in turns."""
    asleep: list[dict[Server, int]] = []
    size = sum(tensor.nbytes for tensor in bench.weights(1).values())
    for i in range(count):
        keep = "nothing" if i % 2 == 0 else "weights"
        found = {}
        for server in bench.servers:
            await server.complete(bench.reference.prompt(bench.context - FEW, seed=i), FEW)
            before = (await server.contract()).process.resident_bytes
            answer = await put_to_sleep(trainer, server, keep=keep)
            found[server] = (await server.contract()).process.resident_bytes
            released = answer["released_bytes"]
            least = FREED * size if keep == "nothing" and size > SEEN else 0
            await _check_freed(server, released, before - found[server], least)
        asleep.append(found)
        if keep == "nothing":
            version = trainer.version + 1
            await trainer.publish(version, bench.weights(version))
        else:
            for server in bench.servers:
                await wake(trainer, server, trainer.version)
    for server in bench.servers:
        growth = asleep[-2][server] - asleep[2][server]  # both with `keep: nothing`
        if growth > SEEN + size:
            raise GuaranteeError(
                f"asleep it holds {growth} bytes more than {count - 4} sleeps before",
                f"at most {SEEN + size} more: what it holds does not grow with what it has done",
                f"{server}: {count} sleeps",
            )
        await bench.check_content(server, bench.weights(trainer.version), trainer.version, f"{count} sleeps")


async def _check_freed(server: Server, released: int, fell: int, least: float) -> None:
    """Checks that a server releases `least` bytes, and what it says. `fell`: resident memory, by bytes."""
    without_nccl = "nccl" not in (await server.contract()).backends
    if released < least:
        raise GuaranteeError(
            f"released_bytes is {released}",
            f"{least:.0f} at least, for weights go",
            f"{server}: POST {SLEEP}",
        )
    if without_nccl and released > SEEN and fell < FREED * released:
        raise GuaranteeError(
            f"released_bytes is {released}, and resident memory fell by {fell}",
            f"at least {FREED:.0%} of the bytes that it says",
            f"{server}: POST {SLEEP}, and look at /contract.process before and after",
        )
