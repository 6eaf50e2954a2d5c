"""The groups that the actor has started but not completed. Pure state, no I/O."""

from dataclasses import dataclass, field

from contracts.records import Rollout
from pipelinerl.domains.base import Problem
from pipelinerl.rollouts.runner import RolloutSpec


@dataclass
class PendingGroup:
    index: int  # index of the group's problem
    problem: Problem
    finished: list[Rollout] = field(default_factory=list)

    @property
    def success(self) -> float | None:
        """The share of members that solved the problem, excluding failed members."""
        successes = [rollout.success for rollout in self.finished if not rollout.failed]
        return sum(successes) / len(successes) if successes else None


class PendingGroups:
    def __init__(self, group_size: int):
        self._size = group_size
        self._open: dict[int, PendingGroup] = {}

    def open(self, group_id: int, draw: int, index: int, problem: Problem) -> list[RolloutSpec]:
        self._open[group_id] = PendingGroup(index, problem)
        return [
            RolloutSpec(group_id, f"{group_id}-{i}", f"train {draw} {i}", draw) for i in range(self._size)
        ]

    def problem_of(self, spec: RolloutSpec) -> Problem:
        return self._open[spec.group_id].problem

    def add_finished(self, rollout: Rollout) -> PendingGroup | None:
        """Returns the group if this rollout completes it, else None."""
        group = self._open[rollout.group_id]
        group.finished.append(rollout)
        return self._open.pop(rollout.group_id) if len(group.finished) == self._size else None

    @property
    def ids(self) -> list[int]:
        return sorted(self._open)
