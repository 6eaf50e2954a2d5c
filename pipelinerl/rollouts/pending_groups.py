"""The groups that the actor has begun, until each is whole. Pure state, no I/O."""

from dataclasses import dataclass, field

from contracts.records import Rollout
from pipelinerl.domains.base import Problem
from pipelinerl.rollouts.runner import Member


@dataclass
class OpenGroup:
    index: int  # of its problem
    problem: Problem
    finished: list[Rollout] = field(default_factory=list)

    @property
    def success(self) -> float | None:
        """The share of its members that solved the problem, of those that did not fail."""
        successes = [rollout.metrics["success"] for rollout in self.finished if not rollout.failed]
        return sum(successes) / len(successes) if successes else None


class OpenGroups:
    def __init__(self, group_size: int):
        self._size = group_size
        self._open: dict[int, OpenGroup] = {}

    def open(self, group_id: int, draw: int, index: int, problem: Problem) -> list[Member]:
        self._open[group_id] = OpenGroup(index, problem)
        return [Member(group_id, f"{group_id}-{i}", f"train {draw} {i}", draw) for i in range(self._size)]

    def problem_of(self, member: Member) -> Problem:
        return self._open[member.group_id].problem

    def add(self, rollout: Rollout) -> OpenGroup | None:
        """The group, if it is whole now."""
        group = self._open[rollout.group_id]
        group.finished.append(rollout)
        return self._open.pop(rollout.group_id) if len(group.finished) == self._size else None

    @property
    def ids(self) -> list[int]:
        return sorted(self._open)
