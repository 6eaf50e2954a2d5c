"""The simulated run: an event loop that advances the clock to the next event and applies its effects."""

import heapq
import itertools
import math
from collections import deque

import numpy as np

from contracts.records import Rollout
from extensions.simulator.lengths import Lengths
from extensions.simulator.measures import Measures
from extensions.simulator.rates import Rates
from extensions.simulator.rollouts import rollout
from extensions.simulator.server import Request, Server
from extensions.simulator.trainer import Doing, Trainer
from pipelinerl.batching.of_run import build_formation
from pipelinerl.batching.step_formation import Groups
from pipelinerl.config import RunConfig
from pipelinerl.rollouts.admission import admission_of


class StalledError(RuntimeError):
    """The simulated run cannot make progress."""


class SimulatedRun:
    """A run of `max_steps` steps, from the time at which version 0 is live until the last version is live.

    success: share of right rollouts. With 0 or 1, all groups are dropped for lack of a signal.
    """

    def __init__(self, config: RunConfig, rates: Rates, lengths: Lengths, success: float, prompt_tokens: int):
        self._config = config
        self._rates = rates
        self._lengths = lengths
        self._success = success
        self._prompt_tokens = prompt_tokens
        self._random = np.random.default_rng(config.seed)
        self._admission = admission_of(config)
        self._formation = build_formation(config)
        self._groups = Groups(config.group_size)
        self._servers = [Server(rates) for _ in range(config.world.servers)]
        self._trainer = Trainer(rates, config.epochs, whole_steps=config.takes_turns)
        self._asleep_since: float | None = None  # servers sleep while the trainer trains
        self._waiting: deque[tuple[int, int]] = deque()  # (group, member) without a request slot
        self._judged: list[tuple[float, int, Rollout]] = []  # heap of (time of the reward, number, rollout)
        self._numbers = itertools.count()
        self._next_group = 0
        self._made = 0  # number of versions made
        self._live = 0  # version on the servers
        self._to_settle = 0  # rollouts of the step whose weights are being published
        self._dropped_in_a_row = 0
        self._now = 0.0
        self.measures = Measures()

    def run(self) -> Measures:
        """Runs to the end. Raises StalledError."""
        while self._live < self._config.max_steps:
            self._fill()
            self._act()
        for server in self._servers:
            server.go_to(self._now)
        slots = self._config.requests_in_flight
        busy_s = sum(server.busy_s for server in self._servers)
        self.measures.end(self._now, busy_s / (slots * self._now), self._trainer.seconds)
        return self.measures

    # --- the actor ----------------------------------------------------------------------------

    def _fill(self) -> None:
        """Starts requests while request slots are free, and groups while they are admitted."""
        while not self._admission.paused and self._free_slots:
            if not self._waiting:
                if self._admission.blocked_by():
                    return
                self._admission.start(self._next_group)
                self._waiting += ((self._next_group, i) for i in range(self._config.group_size))
                self._next_group += 1
            group_id, member = self._waiting.popleft()
            server = min(self._servers, key=lambda server: server.running)
            server.start(self._now, group_id, member, self._lengths(self._random))

    @property
    def _free_slots(self) -> int:
        return self._config.requests_in_flight - sum(server.running for server in self._servers)

    def _answered(self, server: Server, request: Request) -> None:
        truncated = request.tokens >= self._config.sampling.max_tokens
        reward = float(self._random.random() < self._success)
        spans = server.spans(request)
        made = rollout(request.group_id, request.member, self._prompt_tokens, spans, truncated, reward)
        heapq.heappush(self._judged, (self._now + self._rates.judging_s, next(self._numbers), made))

    # --- the preprocessor ---------------------------------------------------------------------

    def _take(self, made: Rollout) -> None:
        group = self._groups.collect(made)
        if group is None:
            return
        self._admission.finish(made.group_id)
        outcome = self._formation.add_group(group)
        self.measures.completed(group, self._live, outcome.dropped)
        if outcome.dropped:
            self._admission.settle(len(group))
            self._count_dropped(outcome.dropped)
        else:
            self._dropped_in_a_row = 0
        self._trainer.put(outcome.rows, self._now)
        self._take_turns()

    def _count_dropped(self, reason: str) -> None:
        self._dropped_in_a_row += 1
        if self._dropped_in_a_row >= self._config.give_up_after:
            raise StalledError(
                f"{self._dropped_in_a_row} groups in a row were dropped, the last one as {reason}"
            )

    # --- the trainer --------------------------------------------------------------------------

    def _trained(self) -> None:
        row = self._trainer.row
        self.measures.trained(row)
        if not row.closes_step:
            self._trainer.train_next(self._now)
            return
        self._made += 1
        self._to_settle = len(row.group_ids) * self._config.group_size
        if self._config.schedule == "async":
            self._admission.paused = True
            self._trainer.change(Doing.QUIESCING, self._now, math.inf)
        else:
            self._publish()

    def _publish(self) -> None:
        live = self._now + self._rates.update_s
        self._trainer.change(Doing.PUBLISHING, self._now, live)
        begin = live - self._rates.paused_s if self._asleep_since is None else self._asleep_since
        for server in self._servers:
            server.pause(begin, live)

    def _published(self) -> None:
        self._live = self._made
        for server in self._servers:
            server.update(self._now, self._made)
        self._admission.paused = False
        self._asleep_since = None
        self._admission.settle(self._to_settle)
        self._trainer.train_next(self._now)
        self._take_turns()

    def _take_turns(self) -> None:
        """With turns, the servers sleep from the first row of a step until its weights are live."""
        if not self._config.takes_turns or self._trainer.doing is not Doing.TRAINING:
            return
        if self._asleep_since is None:
            self._asleep_since = self._now
            self._admission.paused = True
            for server in self._servers:
                server.go_to(self._now)
                server.pause(self._now, math.inf)

    # --- the clock ----------------------------------------------------------------------------

    def _act(self) -> None:
        """Advances the clock to the next event, and applies it."""
        if self._trainer.doing is Doing.QUIESCING and not any(server.running for server in self._servers):
            self._publish()
        server = min(self._servers, key=Server.next_end)
        judged = self._judged[0][0] if self._judged else math.inf
        self._now = min(server.next_end(), judged, self._trainer.until)
        if self._now == math.inf:
            raise StalledError("nothing is in flight, and no group may start")
        if self._now == judged:
            self._take(heapq.heappop(self._judged)[2])
        elif self._now == self._trainer.until:
            self._trained() if self._trainer.doing is Doing.TRAINING else self._published()
        else:
            self._answered(server, server.end_one())
