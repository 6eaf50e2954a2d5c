"""The actor samples rollouts for problems, and keeps all request slots of the servers in use.

Run by the launcher: `python -m pipelinerl.actor --run-dir DIR`. Reads `trainer_events`, `preprocessor_events`
and `launcher_events`; writes `rollouts`, `eval_rollouts`, `sampler_states` and `actor_events`. One queue
carries the events of the other processes and the actor's finished rollouts.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from contracts.records import (
    ActorStopped,
    CheckpointSaved,
    DropReason,
    PublishWanted,
    Quiesced,
    Record,
    Resumed,
    Rollout,
    SamplerState,
    ServerJoined,
    ServerLeft,
    Settled,
    Started,
    StepClosed,
    TrainingDone,
    WeightsPublished,
)
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.load_watch import adapting
from pipelinerl.clients.of_run import build_client
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.clients.server_watch import watching
from pipelinerl.components import build_domain, build_sampler, instantiate
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import opened
from pipelinerl.domains.judges import build_judge
from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.heartbeat import Heartbeat
from pipelinerl.metrics import BlockedBy
from pipelinerl.process import process_main
from pipelinerl.rollouts.admission import admission_of
from pipelinerl.rollouts.evaluator import Evaluator, ServersLostError
from pipelinerl.rollouts.occupancy import SAMPLE_S, Occupancy, OccupancyTimes
from pipelinerl.rollouts.pending_groups import PendingGroups
from pipelinerl.rollouts.retention import KeptRollouts, SamplerStates
from pipelinerl.rollouts.reward_terms import with_terms
from pipelinerl.rollouts.rollout_metrics import RolloutMetrics, repeating
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec
from pipelinerl.rollouts.slot_queue import SlotQueue
from pipelinerl.spans import Spans
from pipelinerl.streams.events import evaluated_versions, latest_resumption, tail, valid_results
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.streams.of_run import open_streams
from pipelinerl.streams.stream_thread import StreamThread, ThreadWriter
from pipelinerl.weight_transport import transport_of


class SlotFreed:
    """An event: a request slot may be free, because a rollout released it or a limit was raised."""


class Actor:
    def __init__(self, config: RunConfig, run_dir: Path, session: aiohttp.ClientSession):
        self._config = config
        self._session = session
        self.domain = build_domain(config)
        self._sampler = build_sampler(config, self.domain)
        self._rewards = [instantiate(component) for component in config.rewards]
        self._admission = admission_of(config, self.domain.programs)
        self._pool = ServerPool(config.inference.requests_at_first)
        self._judge = build_judge(config.judging)
        self._failures = FirstFailures("rollouts")
        self._newest = 0  # newest version that the trainer has made
        client = build_client(config, session, self._pool, self.domain, self._judge)
        self._client = replace(client, newest=lambda: self._newest)
        streams = open_streams(config, run_dir)
        self._stream_thread = StreamThread()
        self._rollouts = ThreadWriter(streams.writer("rollouts"), self._stream_thread)
        self._events = ThreadWriter(streams.writer("actor_events"), self._stream_thread)
        self._sampler_states = SamplerStates(streams.writer("sampler_states"))
        self._incoming: asyncio.Queue[Record | BaseException | SlotFreed] = asyncio.Queue()
        resumed = latest_resumption(streams)
        for name in ("trainer_events", "preprocessor_events"):
            tail(streams.reader(name), resumed.ends.get(name, 0), self._incoming)
        self._launched = LaunchedServers(streams)
        self._launched.refresh()
        tail(streams.reader("launcher_events"), self._launched.offset, self._incoming)
        self._metrics = RolloutMetrics(run_dir)
        spans = Spans(run_dir, "actor")
        self._occupancy = OccupancyTimes(spans, self.domain.programs is not None)
        self._version = -1
        self._resume(resumed)
        self._groups = PendingGroups(config.group_size)
        self._slots = SlotQueue(self._slot_freed)
        self._rolling: set[asyncio.Task] = set()
        self._background: set[asyncio.Task] = set()
        transport = transport_of(config)
        self.gate = transport.gate(session, self._slot_freed)
        self._evaluator = Evaluator(
            config,
            RolloutRunner("", self.domain, self._client, config.rollout, failures=self._failures),
            ThreadWriter(streams.writer("eval_rollouts"), self._stream_thread),
            self._events,
            self._metrics,
            spans,
            evaluated_versions(valid_results(streams)),
            spawn=lambda work: self._spawn(work, self._background),
            on_begin=self.gate.recheck,
            pulled=transport.pulled,
        )
        self.gate.watch(self._pool)
        self.gate.watch(self._evaluator.pool, lambda: self._evaluator.last_started_version)

    def _resume(self, resumed: Resumed) -> None:
        """Restores the counts, the draws, and the groups to train again."""
        self._next_group = resumed.next_group
        self._redraws = deque(resumed.redraws)
        self._draws = 0
        if resumed.sampler:
            self._sampler.load_state_dict(resumed.sampler.state)
            self._draws = resumed.sampler.draws
        while self._draws < resumed.draws:  # draws after the recorded state, so that the next one is new
            self._draw(resumed.version)
        checkpoints = self._config.checkpoint.every or resumed.kept_offset is not None
        self._kept = KeptRollouts((resumed.kept_offset or 0) if checkpoints else None)
        for group_id in resumed.replayed:
            self._admission.start(group_id)
            self._admission.finish(group_id)
            self._kept.written(group_id, resumed.rollouts_offset)
        self._rollouts.protect(self._kept.begin(self._rollouts.end))

    def _draw(self, version: int) -> tuple[int, int]:
        """Returns the number of the draw and the index of its problem."""
        self._draws += 1
        return self._draws - 1, self._sampler.next(version)

    @property
    def pools(self) -> list[ServerPool]:
        return [self._pool, self._evaluator.pool]

    def adapting(self) -> AbstractAsyncContextManager[None]:
        """Adapts the concurrency of each server while the block runs, if none is configured."""
        inference = self._config.inference
        if inference.concurrency is None:
            return adapting(self._pool, self._session, inference.requests_at_first, self._slot_freed)
        return nullcontext()

    def write_progress(self) -> None:
        """Writes the numbers of requests and rollouts in progress."""
        if self._version >= 0:
            in_flight = sum(pool.in_flight for pool in self.pools)
            self._metrics.write_progress(self._version, in_flight, len(self._rolling), len(self._pool.held))

    def sample_occupancy(self) -> None:
        """Samples the use of the request slots."""
        if self._version < 0:
            return
        on_servers = 0 if self.domain.demonstrated else len(self._rolling)
        self._occupancy.sample(
            Occupancy(
                in_flight=self._pool.in_flight,
                capacity=self._pool.capacity,
                under_way=on_servers - self._slots.between_segments,
                away=self._slots.away,
                blocked_by=self._why_slots_are_free(),
            )
        )

    def _why_slots_are_free(self) -> BlockedBy | None:
        """Returns the reason why a free slot is not used, or None if no slot is free."""
        if self._pool.is_empty:
            return BlockedBy.SERVERS
        if self._pool.has_no_usable_server:
            return BlockedBy.WEIGHTS
        return self._blocked_by() if self._slots_in_use < self._pool.capacity else None

    async def run(self) -> None:
        """Runs from the first published weights to the last evaluation."""
        while self._version < 0:
            await self._handle(await self._incoming.get())
        while True:
            await self._start_rollouts()
            event = await self._incoming.get()
            if isinstance(event, TrainingDone):
                break
            await self._handle(event)
        await self._stop()

    async def _handle(self, event: Record | BaseException | SlotFreed) -> None:
        match event:
            case BaseException():
                raise event
            case StepClosed():
                self._newest = event.version
            case WeightsPublished():
                self._newest = event.version
                await self._on_published(event)
            # Groups of a version that is not published stay counted: the workers restart.
            case Settled(version=version) if version is None or version <= self._version:
                self._admission.settle(event.rollouts)
                self._kept.settled(event.group_ids)
                self._rollouts.protect(self._kept.begin(self._rollouts.end))
            case CheckpointSaved():
                self._kept.checkpoint = event.rollouts_offset
                self._rollouts.protect(event.rollouts_offset)
                state = SamplerState(draws=self._draws, state=self._sampler.state_dict())
                await self._stream_thread.do(partial(self._sampler_states.append, state))
            case ServerJoined() | ServerLeft():
                await self._update_servers()
            case PublishWanted():
                self._spawn(self._quiesce(event.version), self._background)
            case Rollout():
                await self._finish_rollout(event)

    # --- servers and weights ------------------------------------------------------------------

    async def _update_servers(self) -> None:
        """Removes the servers that have left. Publications add new servers."""
        for leaving in await self._stream_thread.do(self._launched.refresh):
            self.gate.forget(leaving.joining.url)
            self._pool.forget(leaving.joining.url, leaving.drains)
            await self._evaluator.forget(leaving.joining.url, leaving.drains)

    async def _on_published(self, published: WeightsPublished) -> None:
        await self._update_servers()  # a published server may have left meanwhile
        present = {joining.number: joining.url for joining in self._launched.present}
        servers = [present[number] for number in published.joinings if number in present]
        published = msgspec.structs.replace(published, servers=servers)
        self._version = published.version
        client = replace(self._client, acquire_slot=self._slots.wait_for_slot)
        self._run_rollout = RolloutRunner(
            published.run,
            self.domain,
            client,
            self._config.rollout,
            self._config.token_fields,
            self._slots.leave_slot,
            self._slots.slot_while_away,
            self._failures,
        )
        self.gate.published(published)
        await self._pool.set_servers(published.servers, sparing=self._evaluator.pinned_servers)
        await self._pool.resume()
        self._admission.paused = False
        self._metrics.write(self._version, self._pool.in_flight, self._occupancy.of_version())
        await self._evaluator.on_published(published)

    async def _quiesce(self, version: int) -> None:
        """Pauses requests until `version` is live. Reports when none is in flight.

        If servers sleep meanwhile, requests wait in the servers instead, unless their tokens may have no lag.
        """
        self._admission.paused = True
        ages = version > self._version
        if not self._config.takes_turns or (ages and self._config.lag_limit == 0):
            await asyncio.gather(self._pool.pause(), self._evaluator.pause())
        if self._config.takes_turns:
            self._pool.suspend()
            self._evaluator.suspend()
        await self._events.append(Quiesced(version=version))

    # --- rollouts -----------------------------------------------------------------------------

    async def _start_rollouts(self) -> None:
        """Fills free slots with new rollouts of open groups, then resumed rollouts, then a new group."""
        while self._slots_in_use < self._pool.capacity:
            if spec := self._slots.pop_new():
                self._spawn(self._roll_out(spec), self._rolling)
            elif not self._slots.resume_one():
                if self._blocked_by():
                    return
                await self._open_group()

    def _blocked_by(self) -> BlockedBy | None:
        """Returns the reason why no group may start, or None if one may."""
        self._admission.slots = self._pool.capacity
        self._admission.behind = self.gate.behind
        self._admission.judging = self._judge.waiting if self._judge else 0
        return self._admission.blocked_by()

    @property
    def _slots_in_use(self) -> int:
        return len(self._rolling) - self._slots.between_segments - self._slots.away

    def _slot_freed(self) -> None:
        self._incoming.put_nowait(SlotFreed())

    async def _open_group(self) -> None:
        group_id = self._next_group
        size = self._config.group_size
        self._next_group += 1
        self._admission.start(group_id)
        draw, problem = self._redraws.popleft() if self._redraws else self._draw(self._version)
        await self._events.append(
            Started(group_id=group_id, rollouts=size, draw=draw, problem=problem, version=self._version)
        )
        self._slots.put(self._groups.open(group_id, draw, problem, self.domain.train_problem(problem)))

    async def _roll_out(self, spec: RolloutSpec) -> None:
        self._incoming.put_nowait(await self._run_rollout(self._groups.problem_of(spec), spec))

    async def _finish_rollout(self, rollout: Rollout) -> None:
        """Writes the group if the rollout completes it. Reward terms may compare a group's members."""
        group = self._groups.add_finished(rollout)
        if group is None:
            return
        self._kept.written(rollout.group_id, self._rollouts.end)
        members = with_terms(group.finished, self._rewards, self._version)
        await self._rollouts.append(*members)
        for member in members:
            self._metrics.finished(member)
        self._admission.finish(rollout.group_id)
        if group.success is not None:
            self._sampler.observe(group.index, group.success)

    # --- the end ------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine, tasks: set[asyncio.Task]) -> asyncio.Task:
        """Starts a task. An exception in it ends the actor."""

        def ended(task: asyncio.Task) -> None:
            tasks.discard(task)
            self._slot_freed()
            if not task.cancelled() and task.exception() is not None:
                self._incoming.put_nowait(task.exception())

        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _stop(self) -> None:
        """Cancels requests, settles the open groups, and evaluates the last version.

        Waits for an evaluation of version 0 that still runs.
        """
        await self._update_servers()
        start = await self._evaluator.cancel_all_but_the_first("training is done")
        in_flight = self._rolling | self._background - {start}
        for task in in_flight:
            task.cancel()
        await asyncio.gather(*in_flight, return_exceptions=True)
        await self._handle_finished()
        if left := self._groups.ids:
            rollouts = len(left) * self._config.group_size
            settled = Settled(group_ids=left, rollouts=rollouts, reason=DropReason.TRAINING_DONE)
            await self._events.append(settled)
        if start:
            await self._wait_for(start)
        within_s = self._config.world.server_start_timeout_s
        last = self._evaluator.evaluate(self._version, within_s)
        await self._wait_for(self._spawn(last, self._background))
        await self._handle_finished()
        await self._events.append(ActorStopped())

    async def _wait_for(self, evaluation: asyncio.Task) -> None:
        """Waits for the evaluation. Raises ServersLostError if no server is left: no new one is published."""
        while not evaluation.done():
            if self._pool.is_empty:
                raise ServersLostError(
                    "no server is left that holds the last version; resume=true evaluates it"
                )
            event = await self._incoming.get()
            if isinstance(event, ServerLeft | BaseException):
                await self._handle(event)

    async def _handle_finished(self) -> None:
        """Handles the finished rollouts and the errors in the queue."""
        while not self._incoming.empty():
            event = self._incoming.get_nowait()
            if isinstance(event, Rollout | BaseException):
                await self._handle(event)


async def main(config: RunConfig, run_dir: Path, token: str | None) -> None:
    """Runs the actor until the run ends."""
    async with open_session(token) as session:  # `rollout.timeout_s` bounds its requests
        heartbeat = Heartbeat(run_dir, "actor", config.world.heartbeat_timeout_s)
        actor = Actor(config, run_dir, session)
        async with (
            heartbeat.of_loop(),
            opened(actor.domain),
            watching(actor.pools),
            actor.adapting(),
            actor.gate.running(),
            repeating(actor.write_progress),
            repeating(actor.sample_occupancy, SAMPLE_S),
        ):
            await actor.run()


if __name__ == "__main__":
    process_main("actor", lambda config, run_dir, token: asyncio.run(main(config, run_dir, token)))
