"""The books of a run, over group ids: what was started is trained, dropped by a named reason, in flight
(when the run was cut short), or lost.

Fed with `Started` and `Settled` events in any order; no I/O in here. Used by the report and by tests.
"""

from collections import Counter

from contracts.records import ActorStopped, DropReason, Settled, Started

NAMED = 10  # ids that an error spells out


class GroupAccounts:
    def __init__(self):
        self._sizes: dict[int, int] = {}  # group -> rollouts
        self._reasons: dict[int, DropReason | None] = {}  # group -> why dropped, None = trained
        self._started_twice: set[int] = set()
        self._settled_twice: set[int] = set()
        self._settled_rollouts = 0  # as the `Settled` events count them
        self._finished = False  # whether the actor ended its work; until then groups may be in flight

    def observe(self, event: Started | Settled | ActorStopped) -> None:
        match event:
            case ActorStopped():
                self._finished = True
            case Started(group_id=group):
                if group in self._sizes:
                    self._started_twice.add(group)
                self._sizes[group] = event.rollouts
            case Settled(group_ids=groups, reason=reason):
                self._settled_rollouts += event.rollouts
                for group in groups:
                    if group in self._reasons:
                        self._settled_twice.add(group)
                    self._reasons.setdefault(group, reason)

    def summary(self) -> dict[str, object]:
        """Counts of rollouts. A group settled twice counts as it was settled first."""
        dropped: Counter[str] = Counter()
        trained = unsettled = 0
        for group, size in self._sizes.items():
            if group not in self._reasons:
                unsettled += size
            elif reason := self._reasons[group]:
                dropped[reason.value] += size
            else:
                trained += size
        return {
            "rollouts_started": sum(self._sizes.values()),
            "rollouts_trained": trained,
            "rollouts_dropped": dict(sorted(dropped.items())),
            "rollouts_in_flight": 0 if self._finished else unsettled,
            "rollouts_lost": unsettled if self._finished else 0,
            "accounting_errors": self.errors(),
        }

    def errors(self) -> list[str]:
        """What breaks the identity, one line a kind; empty when every group was settled exactly once."""
        kinds = {
            "started twice": self._started_twice,
            "settled twice": self._settled_twice,
            "settled but never started": self._reasons.keys() - self._sizes.keys(),
        }
        if self._finished:
            kinds["started but never settled"] = self._sizes.keys() - self._reasons.keys()
        errors = [f"{len(ids)} groups {kind}: {_some(ids)}" for kind, ids in kinds.items() if ids]
        in_groups = sum(self._sizes[group] for group in self._reasons.keys() & self._sizes.keys())
        if not errors and in_groups != self._settled_rollouts:
            counted = self._settled_rollouts
            errors.append(f"Settled events count {counted} rollouts, their groups hold {in_groups}")
        return errors


def _some(ids: set[int]) -> str:
    first = sorted(ids)[:NAMED]
    return ", ".join(map(str, first)) + (", ..." if len(ids) > NAMED else "")
