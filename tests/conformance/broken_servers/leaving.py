"""Broken servers. G7: asked to leave the weight group."""

from contracts.errors import ContractError, ErrorCode
from inference_adapters.membership import Membership
from tests.conformance.broken_servers.mutants import mutant

right = Membership.leave


@mutant("G7", "leave_process_group: .*200.*left.*True|/contract says", part="leaving")
def says_that_it_left_its_group(options):
    async def leave(self, request):
        self.check_run(request.run)
        if self.group and self.group.epoch != request.epoch:
            raise ContractError(ErrorCode.STALE_EPOCH, "another epoch")
        return self.group is not None

    Membership.leave = leave


@mutant("G7", "^200 .*left", part="leaving")
def leaves_the_group_of_any_epoch(options):
    async def leave(self, request):
        epoch = self.group.epoch if self.group else request.epoch
        return await right(self, request.model_copy(update={"epoch": epoch}))

    Membership.leave = leave


@mutant("G7", "^200 .*left", part="leaving")
def leaves_the_group_of_any_run(options):
    async def leave(self, request):
        return await right(self, request.model_copy(update={"run": self.run}))

    Membership.leave = leave


@mutant("G7", "receiving", part="leaving")
def says_that_it_left_before_the_update_has_ended(options):
    async def leave(self, request):
        if self._ledger.exclusive:
            self.group = None  # the engine still receives the update
            return True
        return await right(self, request)

    Membership.leave = leave


@mutant("G7", "no_group", part="leaving")
def refuses_to_leave_twice(options):
    async def leave(self, request):
        self.epoch_of_group()
        return await right(self, request)

    Membership.leave = leave
