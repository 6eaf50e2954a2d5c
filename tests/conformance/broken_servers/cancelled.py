"""Broken servers. G11: work that must end with its connection."""

import asyncio

from contracts.errors import ContractError, ErrorCode
from inference_adapters import generation_routes, streaming
from inference_adapters.scripted import ScriptedEngine
from tests.conformance.broken_servers.mutants import mutant


@mutant("G11", "tokens take|no answer to POST", part="work", timed=True)
class HidesWorkForClientsThatLeft(ScriptedEngine):
    """`/contract` no longer counts a request whose connection is closed, but its work continues."""

    hidden: set[asyncio.Task] = set()

    async def _generate(self, prompt, sampling):
        deltas: asyncio.Queue = asyncio.Queue()

        async def work():
            async for delta in super(HidesWorkForClientsThatLeft, self)._generate(prompt, sampling):
                deltas.put_nowait(delta)

        task = asyncio.create_task(work())
        self.read = getattr(self, "read", 0) + 1
        try:
            while not (delta := await deltas.get()).finish_reason:
                yield delta
            yield delta
        finally:
            self.read -= 1
            self.hidden.add(task)

    def process(self):
        return super().process().model_copy(update={"running": getattr(self, "read", 0)})


@mutant("G11", "are there 1 s after", part="connections")
def cancels_the_first_choice_only(options):
    right = streaming.merged

    def merged(sources, held):
        async def kept(source):
            deltas: asyncio.Queue = asyncio.Queue()

            async def work():
                async for delta in source:
                    deltas.put_nowait(delta)

            HidesWorkForClientsThatLeft.hidden.add(asyncio.create_task(work()))
            while not (delta := await deltas.get()).finish_reason:
                yield delta
            yield delta

        first, *others = sources
        return right([first, *map(kept, others)], held)

    generation_routes.merged = merged


@mutant(
    "G11",
    "never showed|no answer to POST",
    part="connections",
    hangs=True,
)
class LosesTheSlotOfWhoLeaves(ScriptedEngine):
    slots = asyncio.Semaphore(4)

    async def _generate(self, prompt, sampling):
        await self.slots.acquire()
        async for delta in super()._generate(prompt, sampling):
            yield delta
        self.slots.release()


@mutant("G11", ": 503", part="prompts")
class RefusesTheSecondLongPrompt(ScriptedEngine):
    """Its response is a refusal, so the kit must not report a request that never appeared."""

    long = 0

    def generate(self, prompt_token_ids, sampling):
        self.long += len(prompt_token_ids) > 1000
        if len(prompt_token_ids) > 1000 and self.long > 1:
            raise ContractError(ErrorCode.UNHEALTHY, "one long prompt is enough")
        return super().generate(prompt_token_ids, sampling)


@mutant("G11", "are there 10 s after", part="update")
class ForgetsWhoLeavesWhilePaused(ScriptedEngine):
    async def _wait_while_paused(self, sequence):
        if not self._paused:
            return await super()._wait_while_paused(sequence)
        waiting = asyncio.ensure_future(super()._wait_while_paused(sequence))
        left = False
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                left = True
        if left:
            await asyncio.sleep(60)
