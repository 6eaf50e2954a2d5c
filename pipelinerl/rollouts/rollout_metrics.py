"""The actor's metrics: rewards and generation speed, a line per weight version."""

import time
from collections import defaultdict
from pathlib import Path

from contracts.records import Evaluated, Rollout
from pipelinerl.metrics import MetricsWriter


class RolloutMetrics:
    def __init__(self, run_dir: Path):
        self._writer = MetricsWriter(run_dir, "actor")
        self._finished = 0
        self._attempts = 0
        self._clear()

    def _clear(self) -> None:
        self._rewards: list[float] = []
        self._successes: list[float] = []
        self._components: defaultdict[str, list[float]] = defaultdict(list)
        self._tokens = 0
        self._since = time.monotonic()

    def finished(self, rollout: Rollout) -> None:
        self._finished += 1
        self._tokens += rollout.sampled_tokens
        if not rollout.failed:
            self._rewards.append(rollout.reward)
            self._successes.append(rollout.metrics["success"])
            for name, value in rollout.reward_components.items():
                self._components[name].append(value)

    def write(self, version: int, in_flight: int) -> None:
        """The rollouts that finished since the last call."""
        values = {"in_flight": in_flight, "rollouts_finished": self._finished}
        if self._rewards:
            values["reward_mean"] = sum(self._rewards) / len(self._rewards)
            values["success_rate"] = sum(self._successes) / len(self._successes)
            for name, of_rollouts in self._components.items():
                values[f"reward_{name}"] = sum(of_rollouts) / len(of_rollouts)
            values["generation_tokens_per_s"] = self._tokens / (time.monotonic() - self._since)
        self._writer.write(version, **values)
        self._clear()

    def attempted(self) -> None:
        """Counts an attempt at a held-out problem that has finished."""
        self._attempts += 1

    def write_progress(self, version: int, in_flight: int, under_way: int) -> None:
        """What is under way now, and what has finished since the process began."""
        self._writer.write(
            version,
            in_flight=in_flight,
            rollouts_under_way=under_way,
            rollouts_finished=self._finished,
            attempts_finished=self._attempts,
        )

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
