"""Broken servers. G7: responses about groups, runs and updates that newer ones have replaced."""

from contracts.errors import ContractError, ErrorCode
from inference_adapters.membership import NOTICE_S, Membership
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord
from tests.conformance.broken_servers.mutants import mutant


@mutant("G7", "504|forms", part="forming-group")
def joins_an_epoch_that_is_being_joined(options):
    right = Membership._check_join

    def check(self, request):
        joining = self._joining
        self._joining = None
        try:
            right(self, request)
        finally:
            self._joining = joining

    Membership._check_join = check


@mutant("G7", "ended with .*rendezvous_timeout", part="forming-group")
def tells_a_replaced_join_that_its_time_is_over(options):
    right = Membership._result_of

    async def joined_ranks(self, join):
        try:
            return await right(self, join)
        except ContractError as error:
            if error.code is ErrorCode.STALE_EPOCH:
                raise ContractError(ErrorCode.RENDEZVOUS_TIMEOUT, error.message) from error
            raise

    Membership._result_of = joined_ranks


@mutant("G7", "no answer to POST /init_process_group|update_in_progress", part="takeover-in-update")
def waits_for_the_update_of_another_run(options):
    async def end_of(self, update, request):
        await update.wait(update.timeout_s + NOTICE_S)
        if update.receiving:
            raise ContractError(ErrorCode.UPDATE_IN_PROGRESS, "it is still being received")

    Membership._wait_for_update = end_of


@mutant("G7", "^GET /weight_update/1: 200", part="takeover-in-update")
def remembers_the_updates_of_another_run(options):
    right = Membership._change_run

    async def change_run(self, request):
        updates = dict(self._ledger._updates)
        await right(self, request)
        self._ledger._updates.update(updates)

    Membership._change_run = change_run


@mutant("G7", "failed with error None", part="infinities")
def tells_no_reason_of_a_failure(options):
    right = UpdateLedger._record_failed

    def failed(self, update, why):
        right(self, update, why)
        update.outcome.error = None

    UpdateLedger._record_failed = failed


@mutant("G7", "live with error", part="polls")
def keeps_the_reason_of_the_last_failure(options):
    live = UpdateLedger._record_live
    failed = UpdateLedger._record_failed

    def tell(self, update):
        live(self, update)
        update.outcome.error = getattr(self, "reason", None)

    def note(self, update, why):
        failed(self, update, why)
        self.reason = why

    UpdateLedger._record_live = tell
    UpdateLedger._record_failed = note


@mutant("G7", "'receiving'|is still being received", part="slow-trainer")
def answers_before_the_update_has_ended(options):
    right = UpdateRecord.wait

    async def wait(self, timeout_s=None):
        await right(self, timeout_s and 0)

    UpdateRecord.wait = wait
