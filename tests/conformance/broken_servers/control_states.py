"""Broken servers. G6: requests during an update, retries, and refusals that change something."""

from contracts.errors import ContractError, ErrorCode
from inference_adapters import weight_updates
from inference_adapters.membership import Membership
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.weight_updates import WeightUpdates
from tests.conformance.broken_servers.mutants import mutant


@mutant("G6", "say .*receiving", part="receiving")
def says_the_new_version_while_receiving(options):
    right = WeightUpdates.contract

    def contract(self):
        info = right(self)
        if update := self.ledger.exclusive:
            weights = info.weights.model_copy(update={"version": update.outcome.version})
            info = info.model_copy(update={"weights": weights})
        return info

    WeightUpdates.contract = contract


@mutant("G6", "broadcast of version|ended as|is .*live.* while|no_group", part="receiving")
def tears_an_update_down_for_the_next_epoch(options):
    async def end_of(self, update, request):
        await self._ledger.cancel_and_wait(update, "a newer epoch")

    Membership._wait_for_update = end_of


@mutant("G6", "broadcast of version|ended as|is .*live.* while|no_group", part="receiving")
def tears_an_update_down_for_any_join(options):
    right = Membership.join

    async def join(self, request):
        update = self._ledger.exclusive
        if update and request.backend == "gloo":
            await self._ledger.cancel_and_wait(update, "a join")
        return await right(self, request)

    Membership.join = join


@mutant("G6", "no_group|broadcast of version|/contract said", part="requests")
def leaves_its_group_when_a_join_fails(options):
    right = Membership._join

    async def join(self, request):
        try:
            return await right(self, request)
        except ContractError:
            self._engine.leave_group()
            self.group = None
            raise

    Membership._join = join


@mutant("G6", "ended with `abort`", part="group")
def aborts_before_the_takeover_is_certain(options):
    right = Membership._join

    async def join(self, request):
        if self.run and request.run != self.run:
            await self._engine.abort_requests()
        return await right(self, request)

    Membership._join = join


@mutant("G6", "contract.run was|other_run|/contract said", part="group")
def takes_the_name_of_a_run_that_never_joined(options):
    right = Membership._check_join

    def check(self, request):
        right(self, request)
        self.run = request.run

    Membership._check_join = check


@mutant("G6", "'failed'", part="receiving")
def calls_off_what_is_live(options):
    async def cancel_and_wait(self, update, why):
        await right(self, update, why)
        update.outcome.state = "failed"

    right = UpdateLedger.cancel_and_wait
    UpdateLedger.cancel_and_wait = cancel_and_wait


@mutant("G6", "^200 .*receiving|^200 .*failed", part="receiving")
def calls_off_whatever_is_named(options):
    right = WeightUpdates.abort

    async def abort(self, request):
        try:
            return await right(self, request)
        except ContractError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return weight_updates.WeightUpdateStatus(**request.model_dump(), state="failed")
            raise

    WeightUpdates.abort = abort


@mutant("G6", "update_in_progress|no_group|stale", part="retries")
def forgets_what_it_called_off(options):
    right = UpdateLedger.cancel_and_wait

    async def cancel_and_wait(self, update, why):
        await right(self, update, why)
        update.fingerprint = ""

    UpdateLedger.cancel_and_wait = cancel_and_wait


@mutant("G6", "^409 .*stale_epoch|the same join again", part="joins")
def forgets_its_join_after_an_update(options):
    right = UpdateLedger._record_live
    members = []
    made = Membership.__init__

    def init(self, *arguments):
        made(self, *arguments)
        members.append(self)

    def live(self, update):
        right(self, update)
        members[0]._joined = None

    Membership.__init__ = init
    UpdateLedger._record_live = live
