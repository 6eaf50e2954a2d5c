"""The actor's metrics: rewards and generation speed, one line per weight version."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean as mean

from contracts.records import Evaluated, Rollout
from pipelinerl.health.rules import Alarm
from pipelinerl.metrics import MetricsWriter
from pipelinerl.rollouts.agent_watch import AgentWatch

EVERY_S = 10.0
log = logging.getLogger(__name__)


class RolloutMetrics:
    def __init__(self, run_dir: Path):
        self._writer = MetricsWriter(run_dir, "actor")
        self._finished = 0
        self._attempts = 0
        self._agents = AgentWatch()
        self._alarms: list[Alarm] = []  # not written yet
        self._clear()

    def _clear(self) -> None:
        self._rewards: list[float] = []
        self._successes: list[float] = []
        self._components: defaultdict[str, list[float]] = defaultdict(list)
        self._of_domain: defaultdict[str, list[float]] = defaultdict(list)  # domain -> successes
        self._lengths: list[int] = []  # sampled tokens of each rollout
        self._truncated = 0
        self._since = time.monotonic()

    def finished(self, rollout: Rollout) -> None:
        self._finished += 1
        self._lengths.append(rollout.sampled_tokens)
        self._truncated += rollout.status == "truncated"
        self._alarms += self._agents.observe(rollout.metrics)
        if not rollout.failed:
            self._rewards.append(rollout.reward)
            self._successes.append(rollout.success)
            self._of_domain[rollout.domain].append(rollout.success)
            for name, value in rollout.reward_components.items():
                self._components[name].append(value)

    def write(self, version: int, in_flight: int, slots: Mapping[str, float]) -> None:
        """Writes metrics of the rollouts that finished, and of the request slots, since the last call."""
        values = {"in_flight": in_flight, "rollouts_finished": self._finished, **slots}
        if self._lengths:
            values["length_mean"] = mean(self._lengths)
            values["length_max"] = max(self._lengths)
            values["truncated_share"] = self._truncated / len(self._lengths)
        if self._rewards:
            values |= self._of_rewards()
        values |= self._taken_alarms()
        self._writer.write(version, **values)
        self._clear()

    def _of_rewards(self) -> dict[str, float]:
        by_domain = self._of_domain if len(self._of_domain) > 1 else {}
        return {
            "reward_mean": mean(self._rewards),
            "success_rate": mean(self._successes),
            **{f"success_{name}": mean(successes) for name, successes in by_domain.items()},
            **{f"reward_{name}": mean(parts) for name, parts in self._components.items()},
            "generation_tokens_per_s": sum(self._lengths) / (time.monotonic() - self._since),
        }

    def attempt_finished(self) -> None:
        self._attempts += 1

    def write_progress(self, version: int, in_flight: int, under_way: int, held: int) -> None:
        """Writes the numbers of rollouts in progress, and of those finished since the process started.

        held: servers that get no requests, because of their weights.
        """
        self._writer.write(
            version,
            in_flight=in_flight,
            rollouts_under_way=under_way,
            servers_held=held,
            rollouts_finished=self._finished,
            attempts_finished=self._attempts,
            **self._taken_alarms(),
        )

    def _taken_alarms(self) -> dict[str, float]:
        alarms = {f"alarm_{alarm}": 1.0 for alarm in self._alarms}
        self._alarms.clear()
        return alarms

    def evaluated(self, result: Evaluated) -> None:
        values = {f"heldout_success_{of.name}": of.success for of in result.sets if len(result.sets) > 1}
        self._writer.write(
            result.version,
            heldout_success=result.success,
            **values,
            heldout_failed=result.failed,
            heldout_first_version=result.first_version,
            heldout_last_version=result.last_version,
        )


@asynccontextmanager
async def repeating(write: Callable[[], None], every_s: float = EVERY_S) -> AsyncIterator[None]:
    """Calls `write` every `every_s` seconds while the block runs."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                write()
            except OSError as error:
                log.warning("metrics are left out: %s", error)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
