"""Decides which run a server belongs to, and which weight group or weight channel it is in.

It is the part of `weight_updates` about joins: run, takeover, epoch and idempotent retries. One join is under
way at a time; a newer one takes its place. A join that fails changes nothing.
"""

import abc
import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from contracts.channel import InitWeightChannelRequest, InitWeightChannelResponse
from contracts.errors import ContractError, ErrorCode
from contracts.inference import ContractInfo, GroupInfo, InferenceEngine, InitProcessGroupRequest
from extensions.stored_weights.server.factory import ChannelFactory
from extensions.stored_weights.server.joined_channel import JoinedChannel
from extensions.stored_weights.server.weight_sources import LOCAL, Caller
from inference_adapters.capabilities import capabilities
from inference_adapters.join_checks import AnyJoinRequest, check_channel, check_claim, check_group
from inference_adapters.update_record import UpdateRecord

NOTICE_S = 1.0  # additional time to notice that a timed-out update has ended


@dataclass
class _Join:
    """A weight group or channel that is being joined, or was joined."""

    request: AnyJoinRequest
    task: asyncio.Task[Any]  # of the answer
    formed: bool = False  # whether it can no longer fail, and so is not given up for a newer one


class Membership(abc.ABC):
    """A server's membership in a run, and in one of its groups or channels."""

    _channel: JoinedChannel

    def __init__(self, engine: InferenceEngine, channels: ChannelFactory):
        self.engine = engine
        self.channels = channels
        self.run: str | None = None
        self._epoch: int | None = None  # of the last one joined in this run, even if it has ended
        self._group: GroupInfo | None = None
        self._joined: _Join | None = None
        self._joining: _Join | None = None

    # --- what the updates add ---------------------------------------------------------------------

    @abc.abstractmethod
    def contract(self) -> ContractInfo: ...

    @abc.abstractmethod
    def _receiving(self) -> UpdateRecord | None:
        """Returns the update for which a join has to wait."""

    @abc.abstractmethod
    async def _call_off(self, update: UpdateRecord, why: str) -> None: ...

    @abc.abstractmethod
    def _forget_updates(self, any_version: bool) -> None:
        """Forgets the updates of the last run. `any_version`: the first of the new run may be lower."""

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
            elif update := self._receiving():
                await self._end_of(update, request)
            else:
                break  # without a wait since the checks
        if self._joining:
            self._joining.task.cancel()
        self._joining = _Join(request, asyncio.create_task(form(request)))
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
        check_group(request, self.engine.info())

    def _check_channel(self, request: InitWeightChannelRequest, caller: Caller) -> None:
        self._check_claim(request)
        info = self.engine.info()
        check_channel(request, info, capabilities(self.engine), self.channels.sources, caller)

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
            await self._call_off(update, f"run {request.run} took over")
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
            ranks = await self.engine.join_group(request)
            join.formed = True
            await self._channel.leave(f"the group of epoch {request.epoch} was joined")
            await self._joined_by(join)
            self._group = GroupInfo(
                epoch=request.epoch, rank_offset=request.rank_offset, world_size=request.world_size
            )
            return ranks
        finally:
            self._no_longer_joining(join)

    async def _join_channel(self, request: InitWeightChannelRequest) -> InitWeightChannelResponse:
        join = self._joining
        try:
            channel = self.channels.channel(request, self.engine)
            proof = await channel.check()
            await channel.open()
            join.formed = True
            try:
                await self._channel.leave(f"the channel of epoch {request.epoch} was joined")
                await self._joined_by(join)
            except BaseException:
                await channel.close()
                raise
            self._leave_group()
            self._channel.enter(channel)  # last, because it may begin to follow at once
            weights = self.contract().weights
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
            self._joining = None

    async def _change_run(self, request: AnyJoinRequest) -> None:
        if self.run is not None:
            await self.engine.abort_requests()
        self.run = request.run
        self._forget_updates(any_version=request.takeover)

    def _leave_group(self) -> None:
        if self._group is not None:
            self.engine.leave_group()
            self._group = None

    async def _end_joining(self) -> None:
        """Gives up a join that can still fail, and waits for the end of one that is formed."""
        while join := self._joining:
            if not join.formed:
                join.task.cancel()
            await asyncio.wait([join.task])

    async def joins_ended(self) -> None:
        """Waits while a group or a channel is being joined."""
        while self._joining:
            await asyncio.wait([self._joining.task])

    def _check_run(self, run: str) -> None:
        if self.run not in (None, run):
            raise ContractError(ErrorCode.OTHER_RUN, f"this server belongs to run {self.run}, not {run}")
