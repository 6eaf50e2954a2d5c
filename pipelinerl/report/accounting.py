"""The ledger of a run: every started group is trained, dropped for a named reason, in flight, or lost. Pure.

Used by the report, by the resumption of a run, and by tests.
"""

from collections import Counter
from typing import NamedTuple

from contracts.records import ActorStopped, DropReason, Resumed, Settled, Started

NAMED = 10  # ids that an error lists
UNDECIDED = {DropReason.INTERRUPTED, DropReason.ROLLED_BACK, DropReason.TRAINING_DONE}


class Settlement(NamedTuple):
    reason: str | None  # None = trained
    version: int | None  # version of the group's step


class GroupAccounts:
    """The ledger, which observes the events of `events.recorded_events` in their order."""

    def __init__(self):
        self.started: dict[int, Started] = {}  # by group
        self._settled: dict[int, Settlement] = {}
        self.undone: dict[int, list[int]] = {}  # group -> versions that it trained and a resumption undid
        self._started_twice: set[int] = set()
        self._settled_twice: set[int] = set()
        self._settled_rollouts = 0  # counted by the `Settled` events
        self._finished = False  # True once the actor has stopped; until then groups may be in flight

    def observe(self, event: Started | Settled | ActorStopped | Resumed) -> None:
        """Records the next event of the run. A resumption undoes the steps after its version."""
        match event:
            case ActorStopped():
                self._finished = True
            case Started(group_id=group):
                if group in self.started:
                    self._started_twice.add(group)
                self.started[group] = event
            case Settled():
                self._settled_rollouts += event.rollouts
                self._settle(event.group_ids, Settlement(event.reason, event.version))
            case Resumed():
                self._finished = False
                self._undo_after(event.version)
                self._drop(event.interrupted, DropReason.INTERRUPTED)
                self._drop(event.rolled_back, DropReason.ROLLED_BACK)

    def _settle(self, groups: list[int], settlement: Settlement) -> None:
        for group in groups:
            if group in self._settled:
                self._settled_twice.add(group)
            self._settled.setdefault(group, settlement)

    def _drop(self, groups: list[int], reason: DropReason) -> None:
        self._settled_rollouts += self._rollouts(groups)
        self._settle(groups, Settlement(reason, None))

    def _undo_after(self, version: int) -> None:
        undone = [group for group, settlement in self._settled.items() if (settlement.version or 0) > version]
        self._settled_rollouts -= self._rollouts(undone)
        for group in undone:
            settlement = self._settled.pop(group)
            if settlement.reason is None:
                self.undone.setdefault(group, []).append(settlement.version)

    def settlement_of(self, group: int) -> Settlement | None:
        return self._settled.get(group)

    def _rollouts(self, groups: list[int]) -> int:
        return sum(self.started[group].rollouts for group in groups if group in self.started)

    @property
    def ended(self) -> bool:
        return self._finished and self.started.keys() <= self._settled.keys()

    def unsettled(self, version: int) -> list[int]:
        """Returns the groups that would be unsettled if the run resumed from `version`."""
        return [
            group
            for group in self.started
            if group not in self._settled or (self._settled[group].version or 0) > version
        ]

    def lost_draws(self, dropped: set[int]) -> list[tuple[int, int]]:
        """Returns the (draw, problem) pairs without a trained or finally dropped group, sorted.

        dropped: groups that are dropped in addition.
        """
        latest = {started.draw: started for started in self.started.values()}
        return sorted(
            (started.draw, started.problem)
            for started in latest.values()
            if started.group_id in dropped or self._undecided(started.group_id)
        )

    def _undecided(self, group: int) -> bool:
        return group in self._settled and self._settled[group].reason in UNDECIDED

    def summary(self) -> dict[str, object]:
        """Returns counts of rollouts. A group that was settled twice counts by its first settlement."""
        dropped: Counter[str] = Counter()
        trained = unsettled = 0
        for group, started in self.started.items():
            if group not in self._settled:
                unsettled += started.rollouts
            elif reason := self._settled[group].reason:
                dropped[str(reason)] += started.rollouts
            else:
                trained += started.rollouts
        return {
            "rollouts_started": self._rollouts(list(self.started)),
            "rollouts_trained": trained,
            "rollouts_dropped": dict(sorted(dropped.items())),
            "rollouts_in_flight": 0 if self._finished else unsettled,
            "rollouts_lost": unsettled if self._finished else 0,
            "accounting_errors": self.errors(),
        }

    def errors(self) -> list[str]:
        """Returns one line per kind of error; none if every group was settled exactly once."""
        kinds = {
            "started twice": self._started_twice,
            "settled twice": self._settled_twice,
            "settled but never started": self._settled.keys() - self.started.keys(),
        }
        if self._finished:
            kinds["started but never settled"] = self.started.keys() - self._settled.keys()
        errors = [f"{len(ids)} groups {kind}: {_some(ids)}" for kind, ids in kinds.items() if ids]
        in_groups = self._rollouts(list(self._settled))
        if not errors and in_groups != self._settled_rollouts:
            counted = self._settled_rollouts
            errors.append(f"Settled events count {counted} rollouts, their groups hold {in_groups}")
        return errors


def _some(ids: set[int]) -> str:
    first = sorted(ids)[:NAMED]
    return ", ".join(map(str, first)) + (", ..." if len(ids) > NAMED else "")
