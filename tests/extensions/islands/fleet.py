"""Several islands in threads of this process: real gloo groups, and a lighthouse whose faults a test sets."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from contracts.trainer import WorkerSpec
from extensions.islands.diloco import DiLoCoTrainer
from extensions.islands.island import Others
from extensions.islands.membership import Meeting, Membership
from extensions.islands.outer import OuterGradient, Snapshot
from extensions.islands.ranks import IslandRanks
from extensions.islands.rounds import NoRounds, RoundStore
from tests.extensions.islands.groups import gloo, in_threads, new_prefix
from tests.extensions.islands.workers import OPTIMIZER, TinyWorker
from tests.limits import HANG_S


class JoinedTrainer(DiLoCoTrainer):
    """A trainer that has the given membership and store."""

    def __init__(self, membership: Membership, rounds: RoundStore | None = None, **options: object):
        super().__init__(**options)
        self._given = Others(membership, rounds or NoRounds())

    def join(self, ranks: IslandRanks) -> Others:
        return self._given

    def synchronise(self) -> dict[str, float]:
        """Tries to make a round now. Returns its measures."""
        return self._island.synchronise(self._given)


class Lighthouse:
    """Forms a meeting as soon as all have asked who are `present` and still train.

    Others are told to continue alone.
    """

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.training: set[str] = set()
        self.denied: Counter[str] = Counter()  # commits that fail on an island
        self.wrapped: dict[str, Callable[[object], object]] = {}  # what an island gets in place of its group
        self.meetings: list[list[str]] = []
        self._asked = threading.Condition()
        self._rounds: dict[str, int] = {}
        self._lineages: dict[str, str] = {}
        self._formed: dict[str, Meeting] = {}

    def join(self, name: str, round: int, lineage: str) -> Meeting | None:
        with self._asked:
            if name not in self.present:
                return None
            self._rounds[name] = round
            self._lineages[name] = lineage
            self._form()
            assert self._asked.wait_for(lambda: name in self._formed, HANG_S), f"{name} waits in vain"
            meeting = self._formed.pop(name)
        if meeting.size == 1:
            return replace(meeting, group=None)
        group = gloo(meeting.group, meeting.rank, meeting.size)
        return replace(meeting, group=self.wrapped.pop(name, lambda group: group)(group))

    def _form(self) -> None:
        """Forms the meeting if all have asked. The lock is held."""
        if not self._rounds or not self.present & self.training <= self._rounds.keys():
            return
        names = sorted(self._rounds)
        self.meetings.append(names)
        prefix = new_prefix()
        newest = max(self._rounds.values())
        lineages = Counter(self._lineages[name] for name in names if self._rounds[name] == newest)
        usual = lineages.most_common(1)[0][0]
        for rank, name in enumerate(names):
            self._formed[name] = Meeting(rank, len(names), newest, prefix, ["peers"], usual)
        self._rounds = {}
        self._asked.notify_all()

    def stop(self, name: str) -> None:
        with self._asked:
            self.training.discard(name)
            self._form()


class ThreadMembership:
    def __init__(self, lighthouse: Lighthouse, name: str):
        self._lighthouse = lighthouse
        self._name = name

    def quorum(self, round: int, lineage: str) -> Meeting | None:
        return self._lighthouse.join(self._name, round, lineage)

    def commit(self, ok: bool) -> bool:
        if ok and self._lighthouse.denied[self._name]:
            self._lighthouse.denied[self._name] -= 1
            return False
        return ok

    def leave(self) -> None:
        self._lighthouse.stop(self._name)


class KeptRounds(NoRounds):
    """The rounds that one island keeps, and a view of its peers'."""

    def __init__(self) -> None:
        self.peers: list[KeptRounds] = []
        self.kept: dict[int, OuterGradient] = {}
        self.states: dict[int, Snapshot] = {}

    def keep(self, gradient: OuterGradient, state: Snapshot) -> None:
        self.kept[gradient.round] = gradient
        momentum = None if state.momentum is None else state.momentum.clone()
        self.states[state.round] = replace(state, anchor=state.anchor.clone(), momentum=momentum)

    def gradients(
        self, begin: int, end: int, sources: Sequence[str], deadline: float
    ) -> list[OuterGradient] | None:
        for peer in self.peers:
            if all(round in peer.kept for round in range(begin, end)):
                return [peer.kept[round] for round in range(begin, end)]
        return None

    def state(self, round: int, sources: Sequence[str], deadline: float) -> Snapshot | None:
        states = [peer.states[max(peer.states)] for peer in self.peers if peer.states]
        return max(states, key=lambda state: state.round, default=None)


class Fleet:
    """Islands by name. Those that are `present` at the lighthouse make rounds together."""

    def __init__(self, **options: object):
        self.lighthouse = Lighthouse()
        self.trainers: dict[str, DiLoCoTrainer] = {}
        self.workers: dict[str, TinyWorker] = {}
        self.rounds: dict[str, KeptRounds] = {}
        self._options = {"every": 4, "timeout_s": 30} | options
        self._seeds = itertools.count(1)

    def add(self, name: str, worker: TinyWorker | None = None, **options: object) -> DiLoCoTrainer:
        """Starts an island, or starts it anew."""
        self.workers[name] = worker or TinyWorker(seed=next(self._seeds))
        self.rounds[name] = KeptRounds()
        self.trainers[name] = JoinedTrainer(
            inner=self.workers[name],
            island=name,
            membership=ThreadMembership(self.lighthouse, name),
            **{"rounds": self.rounds[name]} | self._options | options,
        )
        for each, store in self.rounds.items():
            store.peers = [peer for other, peer in self.rounds.items() if other != each]
        self.trainers[name].init_worker(WorkerSpec(model_path="", optimizer=OPTIMIZER))
        self.lighthouse.present.add(name)
        return self.trainers[name]

    def run(self, updates: int = 4, names: Iterable[str] = ()) -> dict[str, dict[str, float]]:
        """Makes the updates on the islands, or on those with the names. Returns their last measures."""
        return self.each(lambda name: self._train(name, updates), names)

    def _train(self, name: str, updates: int) -> dict[str, float]:
        return [self.trainers[name].step() for _ in range(updates)][-1].measures

    def each(self, job: Callable[[str], object], names: Iterable[str] = ()) -> dict:
        """Returns what `job(name)` returns in a thread for each island."""
        running = list(names or self.trainers)
        self.lighthouse.training = set(running)

        def train(rank: int) -> object:
            try:
                return job(running[rank])
            finally:
                self.lighthouse.stop(running[rank])

        return dict(zip(running, in_threads(len(running), train), strict=True))

    def anchor(self, name: str) -> torch.Tensor:
        return self.trainers[name]._island.outer.anchor.clone()

    def vector(self, name: str) -> torch.Tensor:
        return self.workers[name].vector()


def fleet_of(*names: str, **options: object) -> Fleet:
    fleet = Fleet(**options)
    for name in names:
        fleet.add(name)
    return fleet
