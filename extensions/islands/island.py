"""One rank of an island, and the rounds in which the islands' drifts are merged.

`DiLoCoTrainer` calls `synchronise` after every `every` updates. Nothing is changed before a round is
committed. After a failed or missed round, the next one merges the drift. Must not know how the inner trainer
trains.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from extensions.islands.catching_up import Missed, missed, was_merged
from extensions.islands.drift import Drift, Sent
from extensions.islands.flat import Flat
from extensions.islands.members import IslandRefusedError, Member, fit, refusal, strays, terms
from extensions.islands.membership import Meeting, Membership
from extensions.islands.options import IslandOptions
from extensions.islands.outer import Outer, OuterGradient, Snapshot
from extensions.islands.quantise import QUANTISERS
from extensions.islands.ring import CHUNK, LinkError, Partition, Ring
from extensions.islands.rounds import RoundStore
from extensions.islands.saves import Saved

log = logging.getLogger(__name__)

LARGEST_DRIFT = 2.0**100  # norm times updates below which a sum of drifts does not overflow float32


@dataclass(frozen=True)
class InnerTrainer:
    """The functions of an island's trainer. All but `shards` are collectives over its ranks."""

    shards: Callable[[], Flat]
    adopt: Callable[[], None]
    total: Callable[[list[float]], list[float]]  # returns sums over the ranks
    layout: list[int]  # rank and number of ranks, which must be equal on all islands


@dataclass(frozen=True)
class Others:
    """The other islands of this rank: their membership, and the rounds that they keep."""

    membership: Membership
    rounds: RoundStore


class Island:
    def __init__(self, options: IslandOptions, inner: InnerTrainer):
        """Starts at round 0, with the inner trainer's shards as the anchor."""
        shards = inner.shards()
        self._options = options
        self._inner = inner
        self._others: Others | None = None
        self._terms = terms(
            every=options.period,
            lr=options.outer_lr,
            momentum=options.outer_momentum,
            quantise=options.quantise,
            chunk=CHUNK,
            sizes=shards.sizes,
            layout=inner.layout,
        )
        self.outer = Outer(shards.read(0, shards.elements), options.outer_lr, options.outer_momentum)
        self.drift = Drift(inner.shards, self.outer)
        self._newcomer = True
        self._strays = False  # True if the others have another anchor of the same round
        self._has_sent_digest = False  # True if this rank has sent its digest of the sum to the others
        self._measures: dict[str, float] = {}

    def synchronise(self, others: Others) -> dict[str, float]:
        """Tries to make a round with the other islands. Returns its measures.

        If that fails, `outer_alone` is 1, and training continues from the current shards. Raises
        IslandRefusedError, on every rank, if this island's configuration differs from the others'.
        """
        began = time.monotonic()
        self._others = others
        self._measures = dict.fromkeys(("wait_seconds", "bytes", "drift_norm", "behind"), 0.0)
        self._measures |= {"alone": 1.0, "islands": 1.0}
        for _ in range(self._options.attempts):
            if not self._attempt():
                break
        self._measures |= {"round": self.outer.round, "seconds": time.monotonic() - began}
        return {f"outer_{name}": float(value) for name, value in self._measures.items()}

    def _attempt(self) -> bool:
        """Tries once to make a round. Returns True if another try is useful."""
        asked = time.monotonic()
        meeting = self._others.membership.quorum(self.outer.round, self.outer.lineage)
        self._measures["wait_seconds"] += time.monotonic() - asked
        if meeting is None:
            self._weigh_drift()
            return False
        ready = self._catch_up(meeting)
        self._weigh_drift()
        others_fetch_s = self._options.timeout_s
        ring = Ring(meeting.group, meeting.rank, meeting.size, others_fetch_s + self._options.timeout_s)
        self._has_sent_digest = False
        members = self._members(ring, meeting, ready)
        gradient = self._exchange(ring, members) if members else None
        sent, silent = self._inner.total([ring.sent, float(not self._has_sent_digest)])
        self._measures["bytes"] += sent
        if not self._others.membership.commit(gradient is not None):
            if not silent and self.drift.updates:  # others may have committed the round
                self.drift.remember()
            return ready
        self._make(gradient)
        self._measures |= {"alone": 0.0, "islands": len(members)}
        return False

    # --- the exchange -------------------------------------------------------------------------

    def _weigh_drift(self) -> None:
        """Computes the drift's norm.

        If it is not finite, or would overflow a float32 sum, the next round discards this island's updates.
        """
        norm = math.sqrt(self._inner.total([self.drift.square()])[0])
        self._measures["drift_norm"] = norm
        if self.drift.updates and not norm * self.drift.updates < LARGEST_DRIFT:
            log.warning("the weights have drifted by %s: the next round discards these updates", norm)
            self.drift.updates = 0

    def _exchange(self, ring: Ring, members: list[Member]) -> OuterGradient | None:
        """Returns the sum of all drifts, or None if the members may have different sums."""
        try:
            gradient = self._sum(ring, members)
            self._has_sent_digest = True
            if len(set(ring.gather(gradient.after.encode()))) == 1:
                return gradient
            log.warning("the islands have different sums in round %d", gradient.round)
        except LinkError as error:
            log.warning("the exchange of round %d failed: %s", self.outer.round, str(error))
        return None

    def _sum(self, ring: Ring, members: list[Member]) -> OuterGradient:
        """Returns the sum of all drifts. If a single island takes the mean, its model replaces the anchor."""
        updates = {member.island: member.updates for member in members if member.updates}
        partition = Partition(len(self.outer.anchor), len(members), CHUNK)
        replaces = len(members) == 1 and self.outer.is_mean
        quantise = "none" if replaces else self._options.quantise
        if replaces:
            own = self.drift.model()
        elif self.drift.updates:
            own = self.drift.weighted(self.drift.updates / self._options.period)
        else:
            own = _zeros
        return OuterGradient(
            round=self.outer.round,
            before=self.outer.lineage,
            updates=updates,
            weight=sum(updates.values()) / self._options.period,
            quantise=quantise,
            partition=partition,
            messages=ring.sum(own, partition, QUANTISERS[quantise]) if updates else [],
            replaces=replaces,
        )

    def _members(self, ring: Ring, meeting: Meeting, ready: bool) -> list[Member] | None:
        """Returns the members that exchange drifts now, with which the ring continues.

        Returns None if they cannot, or if this island is not ready.
        """
        own = Member(
            island=self._options.island,
            updates=self.drift.updates,
            round=self.outer.round,
            lineage=self.outer.lineage,
            terms=self._terms,
            newcomer=self._newcomer,
            ready=ready,
        )
        members = []
        try:
            members = [Member.read(record) for record in ring.gather(own.record())]
        except (LinkError, ValueError) as error:
            log.warning("the exchange of round %d failed: %s", self.outer.round, str(error))
        why = refusal(meeting.rank, members) if members else None
        stray = bool(members) and strays(meeting.rank, members)
        found = [why is not None, stray, not members or not fit(members)]
        refused, strayed, unfit = self._inner.total([float(each) for each in found])
        self._strays = bool(strayed)
        if refused:
            self._others.membership.leave()
            raise IslandRefusedError(f"the island {own.island} is refused: {why or 'see the other ranks'}")
        return None if unfit or not ready else self._leave_out(ring, members)

    def _leave_out(self, ring: Ring, members: list[Member]) -> list[Member]:
        """Continues the ring with the members that are ready, and returns them."""
        if late := [member.island for member in members if not member.ready]:
            log.warning("round %d goes on without %s: no catching up", self.outer.round, ", ".join(late))
        ready = [index for index, member in enumerate(members) if member.ready]
        ring.continue_with(ready, self._options.timeout_s)
        return [members[index] for index in ready]

    def _make(self, gradient: OuterGradient) -> None:
        """Makes a committed round."""
        with_cosine = self.drift.updates and not gradient.replaces
        dot, square = self._inner.total(self.drift.end_round(gradient))
        self._inner.adopt()
        norms = math.sqrt(square) * self._measures["drift_norm"]
        if with_cosine and norms:
            self._measures["cosine"] = dot / norms
        self._newcomer = False
        self._others.rounds.keep(gradient, self.outer.snapshot())

    # --- checkpoints --------------------------------------------------------------------------

    def state(self) -> Saved:
        """Returns the state for `restore`. The tensors are not copies, and the next round changes them."""
        sent = self.drift.sent
        tensors = {"anchor": self.outer.anchor, "momentum": self.outer.momentum, "sent": sent and sent.shards}
        numbers = {
            "round": self.outer.round,
            "lineage": self.outer.lineage,
            "updates": self.drift.updates,
            "sent": [sent.round, sent.updates] if sent else None,
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}, numbers

    def restore(self, saved: Saved) -> None:
        """Restores a state of shards of the same sizes."""
        tensors, numbers = saved
        self.outer.restore(
            Snapshot(numbers["round"], numbers["lineage"], tensors["anchor"], tensors.get("momentum"))
        )
        self.drift.updates = numbers["updates"]
        if numbers["sent"]:
            self.drift.sent = Sent(*numbers["sent"], tensors["sent"])
        elif self.drift.updates:  # the island may have made the next round after the save
            self.drift.remember()

    # --- missed rounds ------------------------------------------------------------------------

    def _catch_up(self, meeting: Meeting) -> bool:
        """Moves the anchor to the others' round. Returns False, without a change, if that is not possible."""
        behind = meeting.round - self.outer.round
        self._measures["behind"] = max(behind, self._measures["behind"])
        strays = self._strays or (not behind and self._has_another_anchor(meeting))
        if not behind and not strays:
            return True
        deadline = time.monotonic() + self._options.timeout_s
        found = missed(self._others.rounds, self.outer, meeting, strays, deadline)
        merged = found is not None and was_merged(self._options.island, self.drift.sent, found)
        lacking, counted = self._inner.total([float(found is None), float(merged)])
        if lacking:
            log.warning("round %d cannot be had: training continues alone", meeting.round)
            return False
        if strays:
            log.warning("the others have another round %d: this island's own is dropped", self.outer.round)
        self._move(found, behind, counted > 0)
        return True

    def _has_another_anchor(self, meeting: Meeting) -> bool:
        """Returns True if most islands have another anchor of this round. Round 0 is refused later."""
        return self.outer.round > 0 and meeting.lineage not in (None, self.outer.lineage)

    def _move(self, found: Missed, behind: int, merged: bool) -> None:
        """Moves the anchor and the shards. Drops the drift if too many rounds were missed."""

        def move() -> None:
            self.outer.replay(found.gradients, found.end, found.start)

        if behind <= self._options.max_behind:
            self.drift.rebase(move, merged)
        else:
            log.warning("%d rounds were missed: %d updates are dropped", behind, self.drift.updates)
            self.drift.drop(move)
        self._inner.adopt()


def _zeros(begin: int, end: int) -> torch.Tensor:
    return torch.zeros(end - begin)
