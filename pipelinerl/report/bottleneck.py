"""Finds the bottleneck of a run from its measurements, with advice. Pure.

At least two measurements support a finding, because a waiting trainer has several causes: slow generation, a
verifier, the reference, or the lag limit.
"""

from dataclasses import dataclass
from enum import StrEnum

from pipelinerl.metrics import BlockedBy
from pipelinerl.report.measurements import FEWEST_STEPS, Measurements

# Shares at and above which a measurement supports a finding.
WAITS = 0.25  # time in which the trainer waits
BLOCKED = 0.25  # time in which free request slots are not used
BUSY = 0.8  # request slots, or judging workers, in use
PUBLISHES = 0.2  # time for publications, or for other work besides learning
LEARNS = 0.4  # time in which the trainer learns
OUTSIDE = 0.5  # rollouts in progress without a request
SCORES = 0.5  # mean number of rows at the reference
WASTED = 0.5  # tokens in the loss; below it, wasted tokens come before more servers
ALIKE = 0.25  # groups that all members solved, or none


class Finding(StrEnum):
    GENERATION = "generation"
    TRAINING = "training"
    UPDATE = "update"
    VERIFIER = "verifier"
    AGENT = "agent"
    REFERENCE = "reference"
    LAG = "lag"
    QUIESCING = "quiescing"
    TURNS = "turns"
    CHECKPOINT = "checkpoint"
    BALANCED = "balanced"
    UNCLEAR = "unclear"
    NOT_RECORDED = "not recorded"


@dataclass(frozen=True)
class Bottleneck:
    """A finding. why: the measurements. advice: what to change."""

    finding: Finding
    why: str
    advice: str = ""

    @property
    def sentence(self) -> str:
        head = f"{self.finding} bound" if self.finding in BOUNDS else self.finding
        return f"{head}: {self.why}" + (f"; {self.advice}" if self.advice else "")


BOUNDS = set(Finding) - {Finding.BALANCED, Finding.UNCLEAR, Finding.NOT_RECORDED}
NOT_RECORDED = Bottleneck(Finding.NOT_RECORDED, "the metrics do not say how the time of the steps was spent")
TOO_FEW = Bottleneck(Finding.NOT_RECORDED, f"fewer than {FEWEST_STEPS} steps have closed")


def bottleneck(measured: Measurements | None) -> Bottleneck:
    """Returns the bottleneck of the measured steps."""
    if measured is None:
        return NOT_RECORDED
    if measured.steps < FEWEST_STEPS:
        return TOO_FEW
    before_training = (_turns, _quiescing, _checkpoint, _update, _pulling)
    for find in (*before_training, _training, _reference, _verifier, _generation, _lag):
        if found := find(measured):
            return found
    return Bottleneck(
        Finding.UNCLEAR if measured.wait >= WAITS else Finding.BALANCED,
        f"the trainer waited {measured.wait:.0%} of the time and learned for {measured.learn:.0%} of it, and "
        f"{measured.busy:.0%} of the request slots were in use{_why_free(measured)}",
    )


def _held_back(m: Measurements) -> float:
    """Returns the share of the time in which a later stage than generation kept request slots free."""
    return sum(share for word, share in m.blocked.items() if word in AFTER_GENERATION)


AFTER_GENERATION = (
    BlockedBy.LAG,
    BlockedBy.QUEUE,
    BlockedBy.JUDGING,
    BlockedBy.AGENTS,
    "unread",
)  # "unread": in older runs


def _turns(m: Measurements) -> Bottleneck | None:
    if not m.changing:
        return None
    return Bottleneck(
        Finding.TURNS,
        f"servers and trainer take turns: servers generated for {m.wait:.0%} of the time, the trainer "
        f"learned for {m.learn:.0%} of it, and the changes took {m.changing:.0%}",
        "side by side is faster where both fit (schedule=pipeline), and larger steps change less often",
    )


def _quiescing(m: Measurements) -> Bottleneck | None:
    gate = m.blocked.get(BlockedBy.PAUSED, 0.0)
    if m.quiesce < PUBLISHES or gate < PUBLISHES or m.quiesce < m.wait:
        return None
    return Bottleneck(
        Finding.QUIESCING,
        f"for {m.quiesce:.0%} of the time the trainer waited until no request was in flight, and for "
        f"{gate:.0%} of it none was begun",
        "weights can be published in flight (schedule=pipeline)",
    )


def _checkpoint(m: Measurements) -> Bottleneck | None:
    if m.save < PUBLISHES or m.wait >= WAITS or m.save < m.learn:
        return None
    return Bottleneck(
        Finding.CHECKPOINT,
        f"saving took {m.save:.0%} of the time, learning {m.learn:.0%}",
        "save less often (checkpoint.every)",
    )


def _update(m: Measurements) -> Bottleneck | None:
    holds_trainer_up = m.wait < WAITS and m.publish >= m.learn
    if m.publish < PUBLISHES or not m.phases or not (holds_trainer_up or m.paused >= PUBLISHES):
        return None
    phase = max(m.phases, key=m.phases.__getitem__)
    return Bottleneck(
        Finding.UPDATE,
        f"publishing took {m.publish:.0%} of the time, {m.phases[phase]:.0%} of it to {phase}",
        ADVICE_BY_PHASE[phase],
    )


ADVICE_BY_PHASE = {
    "open": "look for servers that are slow to answer or to join the weight group (logs/trainer-0.log)",
    "gather": "gather in a smaller dtype (weights.dtype), or with fewer trainer ranks a machine",
    "send": "a faster network, or a smaller dtype (weights.dtype)",
    "confirm": "servers take long to apply what they have: inference.receive=staged, where it is paused",
}


BEHIND = (BlockedBy.WEIGHTS, BlockedBy.BEHIND)  # servers are behind the newest weights


def _pulling(m: Measurements) -> Bottleneck | None:
    held = sum(m.blocked.get(word, 0.0) for word in BEHIND)
    if m.wait < WAITS or held <= BLOCKED:
        return None
    return Bottleneck(
        Finding.UPDATE,
        f"the trainer waited {m.wait:.0%} of the time, and for {held:.0%} of it servers were too far behind "
        "the newest weights to be given more",
        "more relays (weights.relays), weights.deltas, or more lag (max_lag)",
    )


def _training(m: Measurements) -> Bottleneck | None:
    if m.wait >= WAITS or m.learn < LEARNS or _held_back(m) <= BLOCKED:
        return None
    return Bottleneck(
        Finding.TRAINING,
        f"the trainer learned for {m.learn:.0%} of the time and waited for {m.wait:.0%}{_why_free(m)}",
        "more trainer ranks, or larger micro-batches (packing.micro_batch_tokens)",
    )


def _reference(m: Measurements) -> Bottleneck | None:
    if m.wait < WAITS or m.scoring is None or m.scoring < SCORES or _held_back(m) <= BLOCKED:
        return None
    return Bottleneck(
        Finding.REFERENCE,
        f"the trainer waited {m.wait:.0%} of the time while {m.scoring:.1f} rows were at the reference "
        f"server, and free slots were not used for {_held_back(m):.0%} of it",
        "a faster reference server, or a regulariser without one",
    )


def _verifier(m: Measurements) -> Bottleneck | None:
    workers_busy = m.judging is not None and m.judging > BUSY
    if m.wait < WAITS or m.busy > BUSY or (m.outside < OUTSIDE and not workers_busy):
        return None
    if m.agents is not None and m.outside >= OUTSIDE:
        return Bottleneck(
            Finding.AGENT,
            f"the trainer waited {m.wait:.0%} of the time, and {m.agents:.0%} of the rollouts under way were "
            f"programs between two requests{_why_free(m)}",
            _quicker_agents(m),
        )
    judging = f", and the workers that judge were {m.judging:.0%} busy" if m.judging is not None else ""
    return Bottleneck(
        Finding.VERIFIER,
        f"the trainer waited {m.wait:.0%} of the time, and {m.outside:.0%} of the rollouts under way had no "
        f"request on a server{judging}",
        "more judging.workers, or a quicker verifier or tool"
        if workers_busy or m.judging is None
        else IDLE_WORKERS,
    )


# The actor shares its CPUs with the workers, so rewards arrive late on a machine with few of them.
IDLE_WORKERS = "quicker tools, or more CPUs for the actor; more judging.workers would be idle, too"


def _quicker_agents(m: Measurements) -> str:
    if m.blocked.get(BlockedBy.LAG, 0.0) > m.blocked.get(BlockedBy.AGENTS, 0.0):
        return "quicker tools, or more lag (max_lag)"
    return "more programs at once (domain.agent.programs, judging.max_waiting), or quicker tools"


def _generation(m: Measurements) -> Bottleneck | None:
    if m.wait < WAITS or m.busy <= BUSY:
        return None
    return Bottleneck(
        Finding.GENERATION,
        f"the trainer waited {m.wait:.0%} of the time, "
        f"and {m.busy:.0%} of the request slots were in use{_useful(m)}",
        _more_to_train(m),
    )


def _more_to_train(m: Measurements) -> str:
    if m.useful is None or m.useful >= WASTED:
        return "more servers (world.servers), or more requests to each (inference.concurrency)"
    if (m.solved or 0.0) + (m.hopeless or 0.0) >= ALIKE:
        return "choose problems that are neither always solved nor never, before you add servers"
    return "look for why groups are dropped, before more servers"


def _useful(m: Measurements) -> str:
    if m.useful is None:
        return ""
    text = f"; {m.useful:.0%} of the tokens sampled came into the loss"
    if m.solved or m.hopeless:
        text += f" ({m.solved:.0%} of the groups were solved by all members, {m.hopeless:.0%} by none)"
    return text


def _lag(m: Measurements) -> Bottleneck | None:
    if m.wait < WAITS or _held_back(m) - m.blocked.get(BlockedBy.QUEUE, 0.0) <= BLOCKED:
        return None
    return Bottleneck(
        Finding.LAG,
        f"the trainer waited {m.wait:.0%} of the time for the last rollouts of its steps{_why_free(m)}",
        "more lag (schedule=pipeline, max_lag), or an end to the longest rollouts (sampling.max_tokens, "
        "rollout.timeout_s)",
    )


def _why_free(m: Measurements) -> str:
    by_share = sorted(m.blocked.items(), key=lambda item: -item[1])
    words = ", ".join(f"{word} {share:.0%}" for word, share in by_share if share >= 0.01)
    return (
        f", and for {sum(m.blocked.values()):.0%} of it free slots were not used ({words})" if words else ""
    )
