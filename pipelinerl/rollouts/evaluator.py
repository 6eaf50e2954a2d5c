"""Decides when held-out problems are attempted, and on which servers.

Called by the actor, which never waits for an evaluation during training.

Without `eval.pinned`, an evaluation has a share of its own on every server, in addition to training's. With
it, one server keeps its weights until the evaluation ends. `Pinned` asks the trainer to leave it out; the
first `WeightsPublished` that does not name it begins the evaluation; `Released` lets it come back.
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
    """An evaluation at the end has no server, and the trainer publishes nothing more."""


class Evaluator:
    """attempt: makes attempts as those of training; evaluations make them at temperature 1.
    rollouts, events, metrics, spans: where the attempts go, what becomes of them, and their time.
    evaluated: versions that earlier launches of the run have evaluated.
    spawn: starts a task that runs while training continues.
    pulled: whether servers get weights by themselves, and so may skip a version.
    on_begin: is called when `last_started_version` has changed, before a request is sent.
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
        self.pool = ServerPool(config.eval.concurrency)  # of all servers
        self._run: str | None = None
        self._version = -1  # that was published last
        self.last_started_version = -1  # that the last evaluation was begun for
        self._under_way: asyncio.Task | None = None
        self._pinned: PinnedServer | None = None

    @cached_property
    def _problems(self) -> list[HeldOut]:
        return held_out(self._attempt.domain, self._config.eval)

    @property
    def pinned_servers(self) -> list[str]:
        """The server that keeps its weights and training's last requests, if there is one."""
        return [self._pinned.url] if self._pinned else []

    async def on_published(self, published: WeightsPublished) -> None:
        self._run = published.run
        await self.pool.set_servers(published.servers)
        await self.pool.resume()
        if self._pinned:
            await self._follow_pinned(self._pinned, published.servers)
        is_new = published.version != self._version  # it is published again where its servers have left
        self._version = published.version
        if is_new and self._is_due(published.version):
            await self._begin(published)

    async def forget(self, url: str, drains: bool = False) -> None:
        """Takes out a server that has left the run. An evaluation that is pinned to it is called off."""
        self.pool.forget(url, drains)
        if self._pinned and self._pinned.url == url:
            if self._is_under_way:
                self._pinned.leave()
            else:
                await self.call_off(f"{url}, which was pinned, has left the run")

    async def pause(self) -> None:
        """Closes the gate for `schedule: async`, and returns when no evaluation request is in flight.

        Requests on a pinned server do not count, because it gets no weights.
        """
        await self.pool.pause()

    async def evaluate(self, version: int, within_s: float | None = None) -> None:
        """Evaluates the live weights on all servers, once in all launches of the run.

        Servers that pull weights may skip the version. Then the result is of the first later one that sampled
        any of it. Raises ServersLostError if no server serves the version within `within_s` seconds.
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
        """Returns the evaluation of version 0 if it is under way. Calls off any other."""
        if self._is_under_way and self.last_started_version == 0:
            return self._under_way
        await self.call_off(why)
        return None

    async def call_off(self, why: str) -> None:
        """Ends the evaluation that waits or is under way, without a result."""
        if self._is_busy:
            log.warning("the held-out evaluation under way is called off: %s", why)
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
        """A publication that was under way when it was pinned still names it."""
        if server.url not in published_to:
            if not self._is_under_way:
                self._under_way = self._spawn(self._evaluate_pinned(server))
        elif self._is_under_way or len(published_to) == 1:
            await self.call_off(
                f"there is no other server left to train with than {server.url}, which was pinned"
            )

    async def _evaluate_pinned(self, server: PinnedServer) -> None:
        try:
            version = await server.version()
            if version in self._evaluated:  # a server that pulls weights may be behind
                raise PinnedServerLostError(f"{server.url} has version {version}, which has been evaluated")
            log.info("version %d is evaluated on %s alone", version, server.url)
            await self._conclude(await self._result_of_pinned(server, version))
        except PinnedServerLostError as error:
            log.warning("the held-out evaluation is called off: %s", error)
        finally:
            await self._release()

    async def _result_of_pinned(self, server: PinnedServer, version: int) -> Evaluated:
        rollouts: list[Rollout] = []
        pool = await server.pool(self._config.eval.concurrency)
        try:
            await server.while_there(version, self._attempt_all(pool, version, rollouts))
        except (
            WeightsReplacedError
        ):  # as where its publication is heard of first: no result, rather than part of one
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
            self._metrics.attempted()
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
    """Returns the servers that are known to have weights of this run, the published ones or older ones."""
    if published.live is None:
        return published.servers
    served = zip(published.servers, published.live, strict=True)
    return [url for url, version in served if version >= 0]
