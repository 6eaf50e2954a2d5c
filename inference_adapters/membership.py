"""Decides which run a server belongs to, and which weight group or weight channel it is in.

It decides about joins: run, takeover, epoch and idempotent retries. One join is under way at a time; a newer
one takes its place. A join that fails changes nothing. `control_routes` and `weight_updates` call it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.channel import InitWeightChannelRequest, InitWeightChannelResponse
from contracts.errors import ContractError, ErrorCode
from contracts.inference import GroupInfo, InferenceEngine, InitProcessGroupRequest
from inference_adapters.channel import LOCAL, Caller, WeightChannel, WeightChannels
from inference_adapters.join_checks import AnyJoinRequest, check_claim, check_group
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord

NOTICE_S = 1.0  # additional time to notice that a timed-out update has ended


@dataclass
class _Join:
    """A weight group or channel that is being joined, or was joined."""

    request: AnyJoinRequest
    task: asyncio.Task[Any]  # of the answer
    formed: bool = False  # whether it can no longer fail, and so is not given up for a newer one


class Membership:
    """A server's membership in a run, and in one of its groups or channels."""

    def __init__(self, engine: InferenceEngine, ledger: UpdateLedger, channels: WeightChannels | None):
        self.channels = channels
        self.run: str | None = None
        self.group: GroupInfo | None = None
        self.channel: WeightChannel | None = None
        self._engine = engine
        self._ledger = ledger
        self._epoch: int | None = None  # of the last one joined in this run, even if it has ended
        self._joined: _Join | None = None
        self._joining: _Join | None = None

    # --- joining ----------------------------------------------------------------------------------

    async def join(self, request: InitProcessGroupRequest) -> list[int]:
        """Joins a newer weight group and returns this server's ranks."""
        return await self._enter(request, self._check_join, self._join)

    async def join_channel(
        self, request: InitWeightChannelRequest, caller: Caller = LOCAL
    ) -> InitWeightChannelResponse:
        """Joins a newer weight channel, for a caller whose own host may be a source."""
        return await self._enter(request, partial(self._check_channel, caller=caller), self._join_channel)

    async def _enter(
        self,
        request: AnyJoinRequest,
        check: Callable[[Any], None],
        form: Callable[[Any], Coroutine[Any, Any, Any]],
    ) -> Any:
        """Returns the answer of a join, which is new or repeats one."""
        while True:
            for known in (self._joining, self._joined):
                if known and known.request == request:  # an HTTP retry
                    return await self._answer_of(known)
            check(request)
            if self._joining and self._joining.formed:
                await asyncio.wait([self._joining.task])
            elif update := self._ledger.receiving:
                await self._end_of(update, request)
            else:
                break  # without a wait since the checks
        if self._joining:
            self._joining.task.cancel()
        self._joining = _Join(request, asyncio.create_task(form(request)))
        self._ledger.join = self._joining.task
        return await self._answer_of(self._joining)

    async def _answer_of(self, join: _Join) -> Any:
        await asyncio.wait([join.task])  # not cancelled with the HTTP request that started it
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
        # A group or channel that is still forming already claims the server.
        if self._joining:
            check_claim(request, self._joining.request.run, self._joining.request.epoch)
        else:
            check_claim(request, self.run, self._epoch)

    async def _end_of(self, update: UpdateRecord, request: AnyJoinRequest) -> None:
        """Waits for the current update, for at most its own timeout.

        A takeover does not wait, because it means that the other run is over.
        """
        if request.run != self.run:
            await self._ledger.call_off(update, f"run {request.run} took over")
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
            await self._joined_by(join)
            self.group = GroupInfo(
                epoch=request.epoch, rank_offset=request.rank_offset, world_size=request.world_size
            )
            return ranks
        finally:
            self._no_longer_joining(join)

    async def _join_channel(self, request: InitWeightChannelRequest) -> InitWeightChannelResponse:
        join = self._joining
        try:
            channel = self.channels.channel(request, self._engine, self._ledger)
            proof = await channel.open()
            join.formed = True
            why = f"the channel of epoch {request.epoch} was joined"
            try:
                await self.leave_channel(why)
                await self._joined_by(join)
            except BaseException:
                await channel.close(why)
                raise
            self.leave_group()
            self.channel = channel
            channel.begin()  # last, because it may begin to pull at once
            weights = self._ledger.weights_info(self.run)
            return InitWeightChannelResponse(version=weights.version, digest=weights.digest, proof=proof)
        finally:
            self._no_longer_joining(join)

    async def _joined_by(self, join: _Join) -> None:
        if join.request.run != self.run:
            await self._change_run(join.request)
        self._joined = join
        self._epoch = join.request.epoch

    def _no_longer_joining(self, join: _Join) -> None:
        if self._joining is join:  # not replaced by a newer join
            self._joining = self._ledger.join = None

    async def _change_run(self, request: AnyJoinRequest) -> None:
        if self.run is not None:
            await self._engine.abort_requests()
        self.run = request.run
        self._ledger.forget(any_version=request.takeover)

    # --- leaving ----------------------------------------------------------------------------------

    def leave_group(self) -> None:
        """Leaves the weight group, if there is one."""
        if self.group is not None:
            self._engine.leave_group()
            self.group = None

    async def leave_channel(self, why: str) -> None:
        """Leaves the weight channel, if there is one. `why` is told of versions that it pulls."""
        channel = self.channel
        self.channel = None
        if channel is not None:
            await channel.close(why)

    async def end_joining(self) -> None:
        """Gives up a join that can still fail, and waits for the end of one that is formed."""
        while join := self._joining:
            if not join.formed:
                join.task.cancel()
            await asyncio.wait([join.task])

    async def close(self) -> None:
        """Leaves the weight channel, and deletes what was fetched unless the directory is to be kept."""
        await self.end_joining()
        await self.leave_channel("the server is closing")
        if self.channels is not None:
            self.channels.close()

    # --- what updates need ------------------------------------------------------------------------

    def check_run(self, run: str) -> None:
        """Raises ContractError if the server belongs to another run."""
        if self.run not in (None, run):
            raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {self.run}, not {run}")

    def check_no_join(self, run: str) -> None:
        """Raises ContractError if a join is under way, from which `run` has to expect a new epoch."""
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
        """Returns the epoch of the channel. Raises ContractError unless there is one that takes requests."""
        if self.channel is None:
            raise ContractError(ErrorCode.NO_CHANNEL, "this server is in no weight channel: join one first")
        request = self.channel.request
        if request.follow:
            why = f"the channel of epoch {request.epoch} follows the run, and takes no requests"
            raise ContractError(ErrorCode.INVALID_REQUEST, why, "manifest_sha256")
        return request.epoch
