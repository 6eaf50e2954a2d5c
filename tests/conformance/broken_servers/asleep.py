"""Broken servers. G19: sleep."""

import torch

from contracts.errors import ContractError, ErrorCode
from contracts.inference import Health, WakeResponse
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.sleeping import Sleeping
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant

MIB = 2**20
# What a server that samples in its sleep is seen by: tokens, ends, or what it samples without weights.
ASLEEP = "tokens arrived|requests are unfinished|log-probability|labels|probability tensor"


@mutant("G19", ASLEEP, part="held")
class GeneratesInItsSleep(ScriptedEngine):
    async def sleep(self, request):
        released = await super().sleep(request)
        if request.keep == "weights":
            await self._in_model_thread(self._exit_pause)
        return released


@mutant("G19", "ended with 'abort'", part="held")
class EndsTheRequestsThatItShouldHold(ScriptedEngine):
    def restore(self):
        super().restore()
        for sequence in self._sequences:
            sequence.aborted = True


@mutant("G19", "the seed gave", part="held")
class DrawsOnceMoreInASleep(ScriptedEngine):
    def __init__(self, *options):
        super().__init__(*options)
        self.generators = set()

    def sample(self, logits, sampling, generator):
        self.generators.add(generator)
        return super().sample(logits, sampling, generator)

    def release(self, keep):
        super().release(keep)
        for generator in self.generators:
            torch.rand(1, generator=generator)


@mutant("G19", "log-probability|after 9[78]", part="held")
class DeliversATokenTwice(ScriptedEngine):
    sleeps = 0

    def release(self, keep):
        super().release(keep)
        self.sleeps += 1

    async def _generate(self, prompt, sampling):
        sleeps = self.sleeps
        async for delta in super()._generate(prompt, sampling):
            if self.sleeps != sleeps and delta.finish_reason is None:
                sleeps = self.sleeps
                yield delta
            yield delta


@mutant("G19", ASLEEP, part="update")
class WakesAtTheFirstBucket(ScriptedEngine):
    async def receive_weights(self, request, progress):
        if self._asleep:
            await self.wake()
        await super().receive_weights(request, progress)


@mutant("G19", ASLEEP, part="update")
class WakesWhenAnUpdateIsCalledOff(ScriptedEngine):
    async def receive_weights(self, request, progress):
        try:
            await super().receive_weights(request, progress)
        except BaseException:
            if self._asleep:
                await self.wake()
            raise


@mutant("G19", "^200", part="update")
def wakes_without_weights(options):
    async def wake(self, request):
        return WakeResponse(version=self._ledger.version, seconds=0.0)

    Sleeping.wake = wake


@mutant("G19", "503", part="held")
def refuses_new_requests_in_its_sleep(options):
    async def until_awake(self):
        if self.asleep:
            raise ContractError(ErrorCode.UNHEALTHY, "asleep")

    Sleeping.until_awake = until_awake


@mutant("G19", "/health is", part="held")
def says_that_it_is_ready_in_its_sleep(options):
    right = WeightUpdates.health

    def health(self):
        found = right(self)
        return Health(status="ready") if found.status == "asleep" else found

    WeightUpdates.health = health


@mutant("G19", "^200", part="refusals")
def sleeps_for_another_run(options):
    right = Sleeping._check

    def check(self, request):
        right(self, request.model_copy(update={"run": self._membership.run}))

    Sleeping._check = check


@mutant("G19", "^200", part="refusals")
def sleeps_for_an_older_epoch(options):
    Membership.check_epoch = lambda self, epoch: None


@mutant("G19", "not ended", part="abort")
def holds_what_it_should_abort(options):
    right = Sleeping.sleep

    async def sleep(self, request):
        return await right(self, request.model_copy(update={"requests": "hold"}))

    Sleeping.sleep = sleep


@mutant("G19", "released_bytes is", part="cycles")
class ReleasesNothing(ScriptedEngine):
    async def sleep(self, request):
        return await super().sleep(request) + 512 * MIB


@mutant("G19", "more than 8 sleeps before", part="cycles")
class HoldsMoreAfterEachSleep(ScriptedEngine):
    def release(self, keep):
        super().release(keep)
        self.held = [*getattr(self, "held", []), torch.ones(16 * MIB, dtype=torch.uint8)]
