"""Runs held-out evaluations for the actor, which never waits for one during training.

Without `eval.pinned`, an evaluation uses request slots of all servers, in addition to training's. With it,
one server keeps its weights until the evaluation ends. The event `Pinned` asks the trainer to exclude the
server, the first `WeightsPublished` without it starts the evaluation, and `Released` makes it available
again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from functools import cached_property

from contracts.records import Evaluated, Pinned, Released, Rollout, WeightsPublished
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RunConfig
from pipelinerl.rollouts.evaluation import HeldOut, as_sampled, attempt_all, held_out, result_of
from pipelinerl.rollouts.pinned_server import PinnedServer, PinnedServerLostError, WeightsReplacedError
from pipelinerl.rollouts.rollout_metrics import RolloutMetrics
from pipelinerl.rollouts.runner import RolloutRunner
from pipelinerl.spans import Spans
from pipelinerl.streams.stream_thread import ThreadWriter

log = logging.getLogger(__name__)


class ServersLostError(RuntimeError):
    """The evaluation after training has no server, and no further one will be published."""


class Evaluator:
    """Starts held-out evaluations when they are due, and records their results.

    attempt: makes attempts; its run, pool and temperature are replaced.
    rollouts, events, metrics, spans: outputs of the evaluations.
    evaluated: versions that were evaluated before this process started.
    spawn: starts a task that runs beside training.
    on_begin: called when `last_started_version` has changed, before any request.
    pulled: True if servers pull weights, and so may skip a version.
    """

    def __init__(
        self,
        config: RunConfig,
        attempt: RolloutRunner,
        rollouts: ThreadWriter,
        events: ThreadWriter,
        metrics: RolloutMetrics,
        spans: Spans,
        evaluated: Collection[int],
        spawn: Callable[[Coroutine], asyncio.Task],
        on_begin: Callable[[], object] = lambda: None,
        pulled: bool = False,
    ):
        self._config = config
        sampling = replace(attempt.client.sampling, temperature=1.0)
        self._attempt = replace(attempt, client=replace(attempt.client, sampling=sampling))
        self._rollouts = rollouts
        self._events = events
        self._metrics = metrics
        self._spans = spans
        self._spawn = spawn
        self._on_begin = on_begin
        self._pulled = pulled
        self._evaluated = {*evaluated}
        self.pool = ServerPool(config.eval.concurrency)  # all servers
        self._run: str | None = None
        self._version = -1  # last published version
        self.last_started_version = -1  # version of the last evaluation that was started
        self._under_way: asyncio.Task | None = None
        self._pinned: PinnedServer | None = None

    @cached_property
    def _problems(self) -> list[HeldOut]:
        return held_out(self._attempt.domain, self._config.eval)

    @property
    def pinned_servers(self) -> list[str]:
        """The pinned server, if there is one. It finishes training's last requests."""
        return [self._pinned.url] if self._pinned else []

    async def on_published(self, published: WeightsPublished) -> None:
        self._run = published.run
        await self.pool.set_servers(published.servers)
        await self.pool.resume()
        if self._pinned:
            await self._follow_pinned(self._pinned, published.servers)
        is_new = published.version != self._version  # a version is republished if its servers have left
        self._version = published.version
        if is_new and self._is_due(published.version):
            await self._begin(published)

    async def forget(self, url: str, drains: bool = False) -> None:
        """Removes a server that has left the run. Cancels an evaluation that is pinned to it."""
        self.pool.forget(url, drains)
        if self._pinned and self._pinned.url == url:
            if self._is_under_way:
                self._pinned.leave()
            else:
                await self.cancel(f"{url}, which was pinned, has left the run")

    async def pause(self) -> None:
        """Pauses requests until the next publication, and waits until none is in flight.

        Requests on a pinned server continue, because it gets no weights.
        """
        await self.pool.pause()

    def suspend(self) -> None:
        """Lets requests wait, because the servers sleep until the next publication."""
        self.pool.suspend()

    async def evaluate(self, version: int, within_s: float | None = None) -> None:
        """Evaluates the live weights on all servers, unless the run has evaluated the version before.

        If servers that pull weights skip the version, the result is of the first later one that sampled it.
        Raises ServersLostError if no server serves the version within `within_s` seconds.
        """
        if version in self._evaluated:
            return
        self.last_started_version = version
        self._on_begin()
        await self._wait_for_server(version, within_s)
        rollouts: list[Rollout] = []
        await self._attempt_all(self.pool, version, rollouts)
        result = result_of(self._problems, rollouts, version)
        self._evaluated.add(version)
        if self._pulled:
            result = as_sampled(result)
        await self._conclude(result)

    async def _wait_for_server(self, version: int, within_s: float | None) -> None:
        try:
            await asyncio.wait_for(self.pool.some_server(), within_s)
        except TimeoutError:
            raise ServersLostError(
                f"no server serves version {version} within world.server_start_timeout_s={within_s:g}; "
                "resume=true evaluates it"
            ) from None

    async def cancel_all_but_the_first(self, why: str) -> asyncio.Task | None:
        """Returns the running evaluation of version 0, if there is one. Cancels any other."""
        if self._is_under_way and self.last_started_version == 0:
            return self._under_way
        await self.cancel(why)
        return None

    async def cancel(self, why: str) -> None:
        """Cancels the running or pending evaluation, which then has no result."""
        if self._is_busy:
            log.warning("the held-out evaluation is cancelled: %s", why)
        if self._under_way:
            self._under_way.cancel()
        await self._release()

    # --- beside training ----------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        return self._pinned is not None or self._is_under_way

    @property
    def _is_under_way(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    def _is_due(self, version: int) -> bool:
        every = self._config.eval.every
        due = version == 0 or (every is not None and version % every == 0)
        return due and version < self._config.max_steps and version not in self._evaluated

    async def _begin(self, published: WeightsPublished) -> None:
        version = published.version
        if self._is_busy:
            log.warning("version %d is not evaluated: the evaluation before it is not over", version)
            return
        can_be_pinned = holders_of(published)
        can_pin = len(published.servers) > 1
        if self._config.eval.pinned and version > 0 and not can_pin:
            log.warning("version %d is not evaluated: eval.pinned would take the only server left", version)
            return
        if self._config.eval.pinned and can_pin and not can_be_pinned:
            log.warning("version %d is not evaluated: no server has weights of this run yet", version)
            return
        self.last_started_version = version
        if not (self._config.eval.pinned and can_pin):
            self._under_way = self._spawn(self.evaluate(version))
        else:
            self._pinned = PinnedServer(self._attempt.client.session, can_be_pinned[-1], published.run)
            await self._events.append(Pinned(server=self._pinned.url))

    # --- on a pinned server -------------------------------------------------------------------

    async def _follow_pinned(self, server: PinnedServer, published_to: list[str]) -> None:
        """Starts the evaluation after the first publication without the pinned server.

        A publication that was in progress when the server was pinned still includes it.
        """
        if server.url not in published_to:
            if not self._is_under_way:
                self._under_way = self._spawn(self._evaluate_pinned(server))
        elif self._is_under_way or len(published_to) == 1:
            await self.cancel(f"no server is left for training but {server.url}, which was pinned")

    async def _evaluate_pinned(self, server: PinnedServer) -> None:
        try:
            version = await server.version()
            if version in self._evaluated:  # a server that pulls weights may be behind
                raise PinnedServerLostError(f"{server.url} has version {version}, which has been evaluated")
            log.info("version %d is evaluated on %s alone", version, server.url)
            await self._conclude(await self._result_of_pinned(server, version))
        except PinnedServerLostError as error:
            log.warning("the held-out evaluation is cancelled: %s", error)
        finally:
            await self._release()

    async def _result_of_pinned(self, server: PinnedServer, version: int) -> Evaluated:
        rollouts: list[Rollout] = []
        pool = await server.pool(self._config.eval.concurrency)
        try:
            await server.while_there(version, self._attempt_all(pool, version, rollouts))
        except WeightsReplacedError:  # no result, as if the publication had been received first
            raise
        except PinnedServerLostError as error:
            log.warning("the evaluation of version %d is cut short: %s", version, error)
        return result_of(self._problems, rollouts, version, pinned=True)

    async def _release(self) -> None:
        if pinned := self._pinned:
            self._pinned = None
            await self._events.append(Released(server=pinned.url))

    # --- either way ---------------------------------------------------------------------------

    async def _attempt_all(self, pool: ServerPool, version: int, rollouts: list[Rollout]) -> None:
        async def keep(rollout: Rollout) -> None:
            await self._rollouts.append(rollout)
            self._metrics.attempt_finished()
            rollouts.append(rollout)

        attempt = replace(self._attempt, run=self._run, client=replace(self._attempt.client, pool=pool))
        await pool.some_server()
        with self._spans("evaluation", version=version):
            await attempt_all(attempt, self._problems, pool.capacity, version, keep)

    async def _conclude(self, result: Evaluated) -> None:
        self._evaluated.add(result.version)
        self._metrics.evaluated(result)
        await self._events.append(result)


def holders_of(published: WeightsPublished) -> list[str]:
    """Returns the servers that have weights of this run, of the published version or an older one."""
    if published.live is None:
        return published.servers
    served = zip(published.servers, published.live, strict=True)
    return [url for url, version in served if version >= 0]
