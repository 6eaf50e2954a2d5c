"""Joins the run's servers to its weight channel, in a thread, and watches the versions that they serve.

Each server has its own task, so that a server that hangs delays neither the others nor training. A restarted
server joins again. A server that refuses permanently, does not respond, or makes no progress while others do
is condemned: the launcher replaces it.
"""

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

import aiohttp

from contracts.channel import InitWeightChannelRequest, PublicKey
from contracts.inference import WeightUpdateStatus
from contracts.records import ServerCondemned
from extensions.stored_weights.trainer.digests import DigestMismatchError, check_digest
from extensions.stored_weights.trainer.follower import Follower
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import NO_ANSWER, ContractRefusalError, ServerControl
from pipelinerl.clients.server_registry import Joining
from pipelinerl.config import RunConfig
from pipelinerl.training.membership.candidates import LacksCapabilityError, is_hopeless, lacking
from pipelinerl.training.publishing.base import PublisherContext

log = logging.getLogger(__name__)
OBSERVE_S = 0.5  # polling interval of a server
ANSWER_TIMEOUT_S = 5.0


class FollowedChannel(NamedTuple):
    """The channel that the servers of a run follow.

    run: id of the trainer's session. key: verifies its manifests. sources: URLs of the store.
    poll_s: interval at which servers poll.
    """

    run: str
    key: PublicKey
    sources: list[str]
    poll_s: float


class Followers:
    """The servers of a run that follow its channel. `digests`: published version -> digest."""

    def __init__(
        self,
        config: RunConfig,
        context: PublisherContext,
        channel: FollowedChannel,
        digests: Mapping[int, str],
    ):
        self._config = config
        self._launched = context.launched
        self._token = context.token
        self._needs = context.needs
        self._record = context.record
        self._channel = channel
        self._run = channel.run
        self._digests = digests
        self._epochs = itertools.count(1)
        self._followers: dict[Joining, Follower] = {}
        self._refused: dict[Joining, Exception] = {}
        self._condemned: queue.SimpleQueue[ServerCondemned] = queue.SimpleQueue()  # events to record
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self.pinned: set[str] = set()  # URLs of servers that must keep their weights
        self.awaited: int | None = None  # version whose status is polled
        self._thread = threading.Thread(target=self._in_thread, daemon=True, name="followers")
        self._thread.start()

    @property
    def joined(self) -> list[Follower]:
        """The servers in the channel that may get requests: pinned ones only if all are pinned."""
        joined = [f for f in self._all() if f.is_joined(self._run)]
        return [f for f in joined if f.follows] or joined

    @property
    def targets(self) -> set[int]:
        """The versions that servers are pulling."""
        channels = [f.info.channel for f in self._all() if f.info and f.is_joined(self._run)]
        return {channel.target for channel in channels if channel and channel.target is not None}

    @property
    def missing(self) -> list[str]:
        """The URLs of the run's servers that are not in the channel."""
        joined = {f.joining for f in self._all() if f.is_joined(self._run)}
        return [joining.url for joining in self._launched.present if joining not in joined]

    @property
    def changed_at(self) -> float:
        """The monotonic time of the last change of the run's servers."""
        return self._launched.changed_at

    @property
    def troubles(self) -> str:
        """The reasons why servers have not joined, as text."""
        return "; ".join(f"{f.joining.url}: {f.trouble}" for f in self._all() if f.trouble)

    def check(self) -> None:
        """Records condemned servers. Raises an error if the run must end."""
        while not self._condemned.empty():
            self._record(self._condemned.get())
        if self._failure:
            raise self._failure
        latest = self._launched.latest
        if latest and all(joining in self._refused for joining in latest):
            raise self._refused[latest[0]]

    def refresh(self) -> None:
        """Reads the run's current servers. This also shows that the caller is alive."""
        self._launched.refresh()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _all(self) -> list[Follower]:
        present = self._launched.present
        followers = list(self._followers.values())
        return [f for f in followers if not f.condemned and f.joining in present]

    # --- in its thread ------------------------------------------------------------------------

    def _in_thread(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            log.exception("the servers are not watched any more")
            self._failure = error

    async def _follow(self) -> None:
        tasks: dict[Joining, asyncio.Task[None]] = {}
        async with open_session(self._token) as session:
            while not self._ended.is_set():
                await asyncio.to_thread(self._launched.refresh)
                self._keep_in_step(session, tasks)
                for task in tasks.values():
                    if task.done():
                        task.result()
                self._condemn_idle()
                await asyncio.sleep(OBSERVE_S / 2)
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _keep_in_step(self, session: aiohttp.ClientSession, tasks: dict[Joining, asyncio.Task[None]]) -> None:
        """Starts to watch servers that have joined the run, and stops for those that have left it."""
        present = self._launched.present
        for joining in [j for j in tasks if j not in present]:
            tasks.pop(joining).cancel()
            del self._followers[joining]
        for joining in [j for j in present if j not in tasks]:
            follower = Follower(joining, ServerControl(session, joining.url))
            self._followers[joining] = follower
            tasks[joining] = asyncio.create_task(self._tend(follower))

    async def _tend(self, follower: Follower) -> None:
        while not follower.condemned:
            try:
                await self._look(follower)
                follower.trouble = None
            except DigestMismatchError:
                raise
            except NO_ANSWER as error:
                self._note(follower, error)
            await asyncio.sleep(OBSERVE_S)

    async def _look(self, follower: Follower) -> None:
        info = await follower.control.contract(ANSWER_TIMEOUT_S)
        follower.hear(info, time.monotonic())
        if failure := lacking(follower.joining.url, info, self._needs):
            raise failure
        check_digest(follower.joining.url, info.weights, self._run, self._digests)
        follows = follower.joining.url not in self.pinned
        if not follower.is_joined(self._run) or follower.follows != follows:
            await self._join(follower, follows)
        elif self.awaited is not None:
            follower.status = await _status(follower.control, self.awaited)

    async def _join(self, follower: Follower, follows: bool) -> None:
        request = InitWeightChannelRequest(
            run=self._run,
            takeover=not follower.taken,  # it may still belong to an older run
            epoch=next(self._epochs),
            kind="relay",
            sources=self._channel.sources,
            public_keys=[self._channel.key],
            follow=follows,
            poll_s=self._channel.poll_s,
            kv_cache=self._config.inference.kv_cache,
        )
        await follower.control.init_weight_channel(request)
        follower.taken = True
        follower.join(request, await follower.control.contract(ANSWER_TIMEOUT_S), time.monotonic())
        log.info("%s %s", follower.joining.url, "follows the weights" if follows else "keeps its weights")

    # --- servers that do not follow -----------------------------------------------------------

    def _note(self, follower: Follower, error: Exception) -> None:
        """Records why a server has not joined, and condemns a server that never will."""
        follower.trouble = f"{type(error).__name__}: {error}"
        if isinstance(error, ContractRefusalError) and error.code == "source_refused":
            self._condemn(follower, str(error), replaceable=True)  # it was started for another origin
        elif isinstance(error, ContractRefusalError | LacksCapabilityError) and is_hopeless(error):
            self._refused[follower.joining] = error
            self._condemn(follower, str(error), replaceable=False)

    def _condemn_idle(self) -> None:
        """Condemns servers that do not respond, or make no progress while another server is ahead."""
        now = time.monotonic()
        longest_s = self._config.world.server_start_timeout_s
        newest = max((f.version(self._run) for f in self._all()), default=-1)
        for follower in self._all():
            follower.compare(self._run, newest, now)
            if now - follower.heard_at > longest_s:
                self._condemn(follower, f"it has been silent for {longest_s:g} s", replaceable=True)
            elif follower.stands_still_s(now) > longest_s:
                why = f"it has not followed the weights for {longest_s:g} s"
                self._condemn(follower, why, replaceable=True)

    def _condemn(self, follower: Follower, why: str, replaceable: bool) -> None:
        joining = follower.joining
        log.error("%s is condemned: %s", joining.url, why)
        follower.condemned = True
        self._condemned.put(
            ServerCondemned(joining=joining.number, url=joining.url, why=why, replaceable=replaceable)
        )


async def _status(control: ServerControl, version: int) -> WeightUpdateStatus | None:
    """Returns the status of the server's update to `version`, or None if there is none."""
    try:
        return await control.weight_update(version, 0)
    except ContractRefusalError:
        return None
