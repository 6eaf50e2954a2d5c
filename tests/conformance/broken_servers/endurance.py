"""Broken servers. G8: resources grow with the work done, speed decreases, or requests are lost."""

import asyncio
import os
import threading

from contracts.conformance.inference.updates_under_load import TOKENS
from inference_adapters import completion_slots, error_answers, generation_routes
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant

KEPT: list[object] = []


def keep(size: int) -> None:
    KEPT.append(bytearray(b"x" * size))


# --- updates and groups


@mutant("G8", "file descriptors: .* updates", part="updates")
class KeepsADescriptorOfEachUpdate(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        os.open(os.devnull, os.O_RDONLY)
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G8", "threads: .* updates", part="updates")
class KeepsAThreadOfEachUpdate(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G8", "processes: .* updates", part="updates")
class WaitsForNoChild(ScriptedEngine):
    def apply_weights(self, tensors, tied, version, kv_cache):
        os.posix_spawn("/bin/true", ["true"], {})
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G8", "file descriptors: .* groups", part="groups")
class KeepsADescriptorOfEachGroup(ScriptedEngine):
    async def join_group(self, request):
        os.open(os.devnull, os.O_RDONLY)
        return await super().join_group(request)


@mutant("G8", "memory.* groups", part="groups")
class KeepsTenMebibytesOfEachGroup(ScriptedEngine):
    async def join_group(self, request):
        keep(10 * 2**20)
        return await super().join_group(request)


@mutant("G8", "memory.* updates failed", part="groups", timed=True)
class KeepsTheBuffersOfFailedUpdates(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except BaseException:
            keep(2 * 2**20)
            raise


@mutant("G8", "milliseconds that one takes", part="updates", timed=True)
class TakesLongerForEachUpdate(ScriptedEngine):
    updates = 0

    async def receive_weights(self, request, progress):
        self.updates += 1
        await asyncio.sleep(0.1 * self.updates)
        await super().receive_weights(request, progress)


@mutant("G8", "bytes of the answer to GET /contract: .* updates", part="updates")
class ListsItsUpdatesInTheContract(ScriptedEngine):
    history = ""

    def info(self):
        return super().info().model_copy(update={"engine_version": f"1{self.history}"})

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.history += f"+{version:0100}"
        super().apply_weights(tensors, tied, version, kv_cache)


# --- requests


@mutant("G8", "file descriptors: .* requests that finished", part="requests")
class KeepsADescriptorOfEachRequest(ScriptedEngine):
    def generate(self, prompt_token_ids, sampling):
        if sampling.max_tokens == 4:
            os.open(os.devnull, os.O_RDONLY)
        return super().generate(prompt_token_ids, sampling)


@mutant("G8", "memory.* cancelled", part="requests")
class KeepsMemoryOfCancelledRequests(ScriptedEngine):
    async def _generate(self, prompt, sampling):
        try:
            async for delta in super()._generate(prompt, sampling):
                yield delta
        except BaseException:
            keep(128 * 2**10)
            raise


@mutant("G8", "memory.* refused", part="requests")
def keeps_memory_of_refusals(options):
    right = error_answers.error_answer

    def answer(*arguments):
        keep(128 * 2**10)
        return right(*arguments)

    error_answers.error_answer = answer


@mutant("G8", "memory.* (streams|cancelled)", part="requests")
def keeps_memory_of_streams(options):
    right = generation_routes._events

    def events(completion, deltas):
        keep(128 * 2**10)
        return right(completion, deltas)

    generation_routes._events = events


# --- slots


class Slots(ScriptedEngine):
    """Generates a limited number of completions at a time, and queues the others."""

    slots = 24

    async def start(self, version):
        await super().start(version)
        self._free = asyncio.Semaphore(self.slots)


@mutant("G8", "tokens a second|requests run or wait|no answer", part="requests", hangs=True)
class LosesASlotByEachCancelledRequest(Slots):
    async def _generate(self, prompt, sampling):
        await self._free.acquire()
        async for delta in super()._generate(prompt, sampling):
            if delta.finish_reason:
                self._free.release()
            yield delta


@mutant("G8", "503", part="requests")
def loses_the_places_of_refused_requests(options):
    right = completion_slots.CompletionSlots.acquired

    def acquired(self, count):
        return _Kept(right(self, count), self, count)

    completion_slots.CompletionSlots.acquired = acquired


class _Kept:
    def __init__(self, right, held_in, count):
        self.right = right
        self.held_in = held_in
        self.count = count

    def __enter__(self):
        return self.right.__enter__()

    def __exit__(self, kind, error, trace):
        self.held_in.taken += self.count if error else 0
        return self.right.__exit__(kind, error, trace)


# --- speed


@mutant("G8", "tokens a second", part="groups", timed=True)
class SlowsDownAfterFiveUpdates(ScriptedEngine):
    updates = 0

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.updates += 1
        if self.updates == 5:
            self.token_delay_s += 0.25  # slower by so much that a busy machine does not hide it
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G8", "tokens a second", part="updates", timed=True)
class AnswersLaterAfterEachUpdate(ScriptedEngine):
    updates = 0

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.updates += 1
        super().apply_weights(tensors, tied, version, kv_cache)

    async def _generate(self, prompt, sampling):
        await asyncio.sleep(min(1.0, 0.02 * self.updates**2))
        async for delta in super()._generate(prompt, sampling):
            yield delta


# --- lost requests


@mutant("G8", "no answer to POST /v1/completions", part="updates", hangs=True, updates=24)
class LosesARequestAtEveryTwentiethUpdate(ScriptedEngine):
    updates = 0
    loses = False

    def apply_weights(self, tensors, tied, version, kv_cache):
        self.updates += 1
        self.loses = self.loses or self.updates % 20 == 0
        super().apply_weights(tensors, tied, version, kv_cache)

    async def _generate(self, prompt, sampling):
        async for delta in super()._generate(prompt, sampling):
            if self.loses:
                self.loses = False
                await asyncio.Event().wait()
            yield delta


@mutant("G8", "no answer to POST /v1/completions", part="updates", hangs=True, thorough=True)
class LosesOneRequestInAThousand(ScriptedEngine):
    requests = 0

    async def _generate(self, prompt, sampling):
        self.requests += sampling.max_tokens in TOKENS
        lost = self.requests % 1000 == 999
        async for delta in super()._generate(prompt, sampling):
            if lost:
                await asyncio.Event().wait()
            yield delta
