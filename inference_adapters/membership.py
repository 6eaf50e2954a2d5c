"""A server's membership in a run, and in a weight group or weight channel of that run.

It handles joins: run, takeover, epoch and idempotent retries. One join is in progress at a time; a newer one
replaces it. A failed join changes nothing. `control_routes` and `weight_updates` call it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.channel import InitWeightChannelRequest, InitWeightChannelResponse
from contracts.errors import ContractError, ErrorCode
from contracts.inference import (
    GroupInfo,
    InferenceEngine,
    InitProcessGroupRequest,
    LeaveProcessGroupRequest,
)
from inference_adapters.channel import LOCAL, Caller, WeightChannel, WeightChannels
from inference_adapters.join_checks import AnyJoinRequest, check_claim, check_group
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord

NOTICE_S = 1.0  # additional time to notice that a timed-out update has ended


@dataclass
class _Join:
    """A weight group or channel that is being joined, or was joined."""

    request: AnyJoinRequest
    task: asyncio.Task[Any]  # its result is the response
    formed: bool = False  # True if it can no longer fail, so that a newer join does not cancel it


class Membership:
    """The run, group or channel of a server, and its joins."""

    def __init__(self, engine: InferenceEngine, ledger: UpdateLedger, channels: WeightChannels | None):
        self.channels = channels
        self.run: str | None = None
        self.group: GroupInfo | None = None
        self.channel: WeightChannel | None = None
        self._engine = engine
        self._ledger = ledger
        self._epoch: int | None = None  # last epoch joined in this run, even if the group has ended
        self._joined: _Join | None = None
        self._joining: _Join | None = None

    # --- joining ----------------------------------------------------------------------------------

    async def join(self, request: InitProcessGroupRequest) -> list[int]:
        """Joins a newer weight group and returns this server's ranks."""
        return await self._join_once(request, self._check_join, self._join)

    async def join_channel(
        self, request: InitWeightChannelRequest, caller: Caller = LOCAL
    ) -> InitWeightChannelResponse:
        """Joins a newer weight channel. The host of `caller` may be a source."""
        return await self._join_once(request, partial(self._check_channel, caller=caller), self._join_channel)

    async def _join_once(
        self,
        request: AnyJoinRequest,
        check: Callable[[Any], None],
        form: Callable[[Any], Coroutine[Any, Any, Any]],
    ) -> Any:
        """Returns the response of a join. A retry gets the response of the join that it repeats."""
        while True:
            for known in (self._joining, self._joined):
                if known and known.request == request:  # an HTTP retry
                    return await self._result_of(known)
            check(request)
            if self._joining and self._joining.formed:
                await asyncio.wait([self._joining.task])
            elif update := self._ledger.exclusive:
                await self._wait_for_update(update, request)
            else:
                break  # no await since the checks
        if self._joining:
            self._joining.task.cancel()
        self._joining = _Join(request, asyncio.create_task(form(request)))
        self._ledger.joining = self._joining.task
        return await self._result_of(self._joining)

    async def _result_of(self, join: _Join) -> Any:
        await asyncio.wait([join.task])  # does not cancel the task if the HTTP request is cancelled
        if join.task.cancelled():
            raise ContractError(
                ErrorCode.STALE_EPOCH,
                f"epoch {join.request.epoch} was given up for a newer one, or the server closes",
            )
        return join.task.result()

    def _check_join(self, request: InitProcessGroupRequest) -> None:
        self._check_claim(request)
        check_group(request, self._engine.info())

    def _check_channel(self, request: InitWeightChannelRequest, caller: Caller) -> None:
        self._check_claim(request)
        if self.channels is None or request.kind not in self.channels.capabilities(self._engine):
            why = f"this server does not declare {request.kind}"
            raise ContractError(ErrorCode.UNSUPPORTED_CHANNEL, why, "kind")
        self.channels.check(request, self._engine, caller)

    def _check_claim(self, request: AnyJoinRequest) -> None:
        # A join in progress already claims the server.
        if self._joining:
            check_claim(request, self._joining.request.run, self._joining.request.epoch)
        else:
            check_claim(request, self.run, self._epoch)

    async def _wait_for_update(self, update: UpdateRecord, request: AnyJoinRequest) -> None:
        """Waits for the current update, at most its timeout. A takeover cancels the update instead."""
        if request.run != self.run:
            await self._ledger.cancel_and_wait(update, f"run {request.run} took over")
            return
        waited_s = update.timeout_s + NOTICE_S
        await update.wait(waited_s)
        if update.receiving:
            raise ContractError(
                ErrorCode.UPDATE_IN_PROGRESS,
                f"version {update.outcome.version} is still being received after {waited_s} s",
            )

    async def _join(self, request: InitProcessGroupRequest) -> list[int]:
        join = self._joining
        try:
            ranks = await self._engine.join_group(request)
            join.formed = True
            await self.leave_channel(f"the group of epoch {request.epoch} was joined")
            await self._set_joined(join)
            self.group = GroupInfo(
                epoch=request.epoch, rank_offset=request.rank_offset, world_size=request.world_size
            )
            return ranks
        finally:
            self._clear_joining(join)

    async def _join_channel(self, request: InitWeightChannelRequest) -> InitWeightChannelResponse:
        join = self._joining
        try:
            channel = self.channels.channel(request, self._engine, self._ledger)
            proof = await channel.open()
            join.formed = True
            why = f"the channel of epoch {request.epoch} was joined"
            try:
                await self.leave_channel(why)
                await self._set_joined(join)
            except BaseException:
                await channel.close(why)
                raise
            self.leave_group()
            self.channel = channel
            self._engine.channel_joined(request)
            channel.begin()  # last, because it may start to pull at once
            weights = self._ledger.weights_info(self.run)
            digest = None if self._ledger.dropped or self._ledger.lost else weights.digest
            return InitWeightChannelResponse(version=weights.version, digest=digest, proof=proof)
        finally:
            self._clear_joining(join)

    async def _set_joined(self, join: _Join) -> None:
        if join.request.run != self.run:
            await self._change_run(join.request)
        self._joined = join
        self._epoch = join.request.epoch

    def _clear_joining(self, join: _Join) -> None:
        if self._joining is join:  # not replaced by a newer join
            self._joining = self._ledger.joining = None

    async def _change_run(self, request: AnyJoinRequest) -> None:
        if self.run is not None:
            await self._engine.abort_requests()
        self.run = request.run
        self._ledger.forget(any_version=request.takeover)

    # --- leaving ----------------------------------------------------------------------------------

    async def leave(self, request: LeaveProcessGroupRequest) -> bool:
        """Leaves the weight group because the trainer will. Returns False if there is no group any more.

        Cancels an update that is being received; waits for one that is being applied.
        """
        self.check_run(request.run)
        self.check_no_join(request.run)
        group = self.group
        if group is None:
            return False
        if group.epoch != request.epoch:
            why = f"epoch {request.epoch} is not the current one, {group.epoch}"
            raise ContractError(ErrorCode.STALE_EPOCH, why)
        if update := self._ledger.exclusive:
            await self._ledger.cancel_and_wait(update, "the trainer leaves the weight group")
        if self.group is group:  # a failed update has left it
            self.leave_group()
        return True

    def leave_group(self) -> None:
        """Leaves the weight group, if there is one."""
        if self.group is not None:
            self._engine.leave_group()
            self.group = None

    async def leave_channel(self, why: str) -> None:
        """Leaves the weight channel, if there is one. `why`: reason for cancelling versions being pulled."""
        channel = self.channel
        self.channel = None
        if channel is not None:
            await channel.close(why)

    async def end_joining(self) -> None:
        """Cancels a join in progress, or waits for its end if it has formed."""
        while join := self._joining:
            if not join.formed:
                join.task.cancel()
            await asyncio.wait([join.task])

    async def close(self) -> None:
        """Ends joining, leaves the weight channel, and closes the server's `WeightChannels`."""
        await self.end_joining()
        await self.leave_channel("the server is closing")
        if self.channels is not None:
            self.channels.close()

    # --- checks of updates ------------------------------------------------------------------------

    def check_run(self, run: str) -> None:
        """Raises ContractError if the server belongs to another run."""
        if self.run not in (None, run):
            raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {self.run}, not {run}")

    def check_epoch(self, epoch: int) -> None:
        """Raises ContractError unless the group or channel that was joined last is of this epoch."""
        if self._epoch is None:
            raise ContractError(ErrorCode.NO_GROUP, "this server has joined no group and no channel")
        if epoch != self._epoch:
            why = f"epoch {epoch} is not the current one, {self._epoch}"
            raise ContractError(ErrorCode.STALE_EPOCH, why)

    def check_no_join(self, run: str) -> None:
        """Raises ContractError if a join is in progress, and `run` is the current or the joining run."""
        if self._joining and run in (self.run, self._joining.request.run):
            raise ContractError(
                ErrorCode.JOINING, f"epoch {self._joining.request.epoch} is still being joined"
            )

    def epoch_of_group(self) -> int:
        """Returns the epoch of the group. Raises ContractError if there is none."""
        if self.group is None:
            raise ContractError(ErrorCode.NO_GROUP, "this server is in no weight group: join one first")
        return self.group.epoch

    def epoch_of_channel(self) -> int:
        """Returns the epoch of the channel. Raises ContractError if there is none, or it follows the run."""
        if self.channel is None:
            raise ContractError(ErrorCode.NO_CHANNEL, "this server is in no weight channel: join one first")
        request = self.channel.request
        if request.follow:
            why = f"the channel of epoch {request.epoch} follows the run, and takes no requests"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "manifest_sha256")
        return request.epoch
