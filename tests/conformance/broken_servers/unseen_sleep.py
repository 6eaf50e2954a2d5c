"""Broken servers that were written from the contract's text alone: sleep."""

from contracts.errors import ContractError, ErrorCode
from inference_adapters.membership import Membership
from inference_adapters.scripted import ScriptedEngine
from inference_adapters.sleeping import Sleeping
from tests.conformance.broken_servers.asleep import ASLEEP
from tests.conformance.broken_servers.mutants import mutant


@mutant("G19", "log-probability", part="update")
class CopiesKeysAndValuesToTheHost(ScriptedEngine):
    """It copies them back when it wakes: right after `/wake`, but not after an update with `keep`."""

    def release(self, keep):
        copies = {sequence: sequence.state for sequence in list(self._sequences)}
        super().release(keep)
        for sequence, state in copies.items():
            sequence.state = state


@mutant("G19", "the seed gave", part="held")
class SeedsAnewAfterTheSleep(ScriptedEngine):
    """A held request is submitted anew: its prompt with its tokens, and the same seed."""

    def __init__(self, token_delay_s):
        super().__init__(token_delay_s)
        self.seeded = set()  # generators that were seeded since the sleep

    def release(self, keep):
        super().release(keep)
        self.seeded.clear()

    def sample(self, logits, sampling, generator):
        if sampling.seed is not None and id(generator) not in self.seeded:
            generator.manual_seed(sampling.seed)
            self.seeded.add(id(generator))
        return super().sample(logits, sampling, generator)


@mutant("G19", ASLEEP, part="update")
class AllocatesWhenTheWakingUpdateArrives(ScriptedEngine):
    """From the 202 on it counts as awake, so it generates when the update fails with `touched: false`."""

    async def receive_weights(self, request, progress):
        if self._asleep:
            await self._in_model_thread(self.restore)
            self._asleep = False
        await super().receive_weights(request, progress)


@mutant("G19", "/health is", part="held")
def answers_an_equal_sleep_of_earlier(options):
    """Answers outlive the sleep: a trainer that sends the same body again gets 200 from a server awake."""
    right = Sleeping.sleep
    answers = {}

    async def sleep(self, request):
        key = request.model_dump_json()
        if key not in answers:
            answers[key] = await right(self, request)
        return answers[key]

    Sleeping.sleep = sleep


@mutant("G19", "409", part="update")
def sleeps_and_wakes_in_a_group_alone(options):
    """`no_group` for a server whose group is gone: it was left, or an update failed, perhaps in the sleep."""
    right = Membership.check_epoch

    def check_epoch(self, epoch):
        if self.group is None and self.channel is None:
            raise ContractError(ErrorCode.NO_GROUP, "this server is in no group and no channel")
        right(self, epoch)

    Membership.check_epoch = check_epoch
