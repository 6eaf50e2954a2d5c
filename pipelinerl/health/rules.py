"""Alarms on the metrics of optimizer steps. Pure state, no I/O.

Trainer rank 0 calls `observe` once per step, and logs and records the returned alarms. The signs are those
that INTELLECT-2 reports before a collapse (arXiv 2505.07291, training instability), and the effective sample
size. A resumed run starts without the metrics of earlier steps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipelinerl.health.trends import Collapse, Growth, Level, Rule

EQUAL_GROUPS = 64
GAP = 0.2  # nats a token; bfloat16 gives 0.01 to 0.03


class Alarm(StrEnum):
    """A warning sign. value: suffix of the metric `alarm_<value>`. sentence: the text in logs."""

    def __new__(cls, value: str, sentence: str):
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member

    GRAD_NORM_RISING = (
        "grad_norm_rising",
        "the gradient norm has crept up: clip it lower (optimizer.max_grad_norm) before training collapses",
    )
    CLIP_FRACTION_RISING = (
        "clip_fraction_rising",
        "more and more tokens are clipped: steps move the policy too far from the one that sampled",
    )
    ENTROPY_RISING_AGAIN = (
        "entropy_rising_again",
        "the entropy had fallen and rises again, which often comes before a collapse",
    )
    SKIPPED = (
        "skipped",
        "the gradient is NaN or infinite: the step was skipped, and its rollouts were not trained on",
    )
    NO_GRADIENT = (
        "no_gradient",
        "the gradient is exactly 0: all advantages are, no token is in the loss, or the loss is detached",
    )
    NO_LEARNING_RATE = (
        "no_learning_rate",
        "the learning rate is 0, so steps change nothing: optimizer.decay_steps has ended before max_steps",
    )
    ESS_COLLAPSED = (
        "ess_collapsed",
        "few tokens carry the step: rollouts are too stale, or trainer and servers disagree",
    )
    OTHER_LOGPROBS = (
        "other_logprobs",
        "servers recorded other log-probabilities than the trainer has by the same weights, so importance "
        "ratios are wrong; try a server with the conformance kit (docs/conformance.md)",
    )
    EQUAL_REWARDS = (
        "equal_rewards",
        f"{EQUAL_GROUPS} groups in a row were dropped, because their answers do not differ in reward: if no "
        "answer is right, take easier problems, a lower sampling.temperature or a larger group_size; if all "
        "are, take harder problems",
    )
    AGENTS_FAIL = (
        "agents_fail",
        "more than 5 % of the attempts ended with a failing program, which counts as a wrong answer: see "
        "logs/judging.log for what programs printed, and docs/train-your-agent.md",
    )
    ANSWERS_UNREAD = (
        "answers_unread",
        "agents left more than 1 % of their answers unread, which favours short ones: raise the timeouts of "
        "their clients, or lower sampling.max_tokens",
    )
    FIELD_REFUSED = (
        "field_refused",
        "a request of an agent was refused for a field that would change what is sampled: logs/actor.log "
        "names each such field once, and docs/train-your-agent.md says which they are",
    )


@dataclass(frozen=True)
class HealthRules:
    """The thresholds of the rules that `Health` documents."""

    window: int  # steps; with 20 or fewer, noise and fast learning alone raise alarms
    grad_norm_growth: float
    grad_norm_floor: float
    clip_fraction_growth: float
    clip_fraction_floor: float
    entropy_fall: float
    entropy_growth: float
    entropy_floor: float  # nats per token
    ess_floor: float
    margin: float

    def __post_init__(self):
        self._require(self.window >= 3, "window", "at least 3")
        for name in ("grad_norm_growth", "clip_fraction_growth", "entropy_growth"):
            self._require(1 < getattr(self, name) < math.inf, name, "greater than 1")
        for name in ("grad_norm_floor", "clip_fraction_floor", "entropy_floor"):
            self._require(0 <= getattr(self, name) < math.inf, name, "0 or more")
        for name in ("entropy_fall", "ess_floor", "margin"):
            self._require(0 < getattr(self, name) < 1, name, "between 0 and 1")

    def _require(self, holds: bool, name: str, what: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {what}, not {getattr(self, name)}")


class Health:
    """The alarms of a run. An alarm is raised when its condition begins, and again only after it has ended.

    The *level* of a metric is the median of its last `window` finite values; with fewer values there is none.
    *lowest* is the smallest level whose window shares no value with the current one. A level *rises* if the
    medians of the three thirds of its window ascend strictly.

    grad_norm_rising       begins when level(grad_norm) > T = max(grad_norm_growth · lowest, grad_norm_floor)
                           and it rises; ends when it is < (1 − margin) · T.
    clip_fraction_rising   the same of clip_fraction.
    entropy_rising_again   the same of entropy, if besides lowest ≤ (1 − entropy_fall) · first level.
    ess_collapsed          begins when level(ess) < ess_floor; ends when it is > (1 + margin) · ess_floor.

    skipped                begins with a step that was skipped.
    no_gradient            begins with the third step in a row that is without_gradient.
    no_learning_rate       begins with a step whose learning rate is 0.
    other_logprobs         begins with the second step in a row with logprob_gap_at_lag_0 > GAP.
    equal_rewards          is raised by the preprocessor, of groups that it drops.

    A step without a finite value of a metric does not change its alarm.
    """

    def __init__(self, rules: HealthRules):
        r = rules
        grad_norm = Growth(r.grad_norm_growth, r.grad_norm_floor, r.margin)
        clip_fraction = Growth(r.clip_fraction_growth, r.clip_fraction_floor, r.margin)
        entropy = Growth(r.entropy_growth, r.entropy_floor, r.margin, r.entropy_fall)
        self._watches: dict[Alarm, Watch | Streak] = {
            Alarm.GRAD_NORM_RISING: Watch("grad_norm", grad_norm, r.window),
            Alarm.CLIP_FRACTION_RISING: Watch("clip_fraction", clip_fraction, r.window),
            Alarm.ENTROPY_RISING_AGAIN: Watch("entropy", entropy, r.window),
            Alarm.SKIPPED: Streak("skipped", lambda skipped: skipped == 1, steps=1),
            Alarm.NO_GRADIENT: Streak("without_gradient", lambda without: without == 1, steps=3),
            Alarm.NO_LEARNING_RATE: Streak("learning_rate", lambda rate: rate == 0, steps=1),
            Alarm.OTHER_LOGPROBS: Streak("logprob_gap_at_lag_0", lambda gap: gap > GAP, steps=2),
            Alarm.ESS_COLLAPSED: Watch("ess", Collapse(r.ess_floor, r.margin), r.window),
        }

    def observe(self, metrics: Mapping[str, float | None]) -> list[Alarm]:
        return [a for a, watch in self._watches.items() if watch.begins_with(metrics.get(watch.metric))]


class Watch:
    """An alarm on the level of a metric."""

    def __init__(self, metric: str, rule: Rule, window: int):
        self.metric = metric
        self._rule = rule
        self._level = Level(window)
        self._active = False

    def begins_with(self, value: float | None) -> bool:
        """Adds the metric's next value. Returns True if the alarm begins with it."""
        if value is None or not math.isfinite(value):
            return False
        self._level.push(float(value))
        if not self._level.exists:
            return False
        was_active = self._active
        if was_active:
            self._active = not self._rule.ends(self._level)
        else:
            self._active = self._rule.begins(self._level)
        return self._active and not was_active


class Streak:
    """An alarm on `steps` consecutive steps whose value of a metric is wrong."""

    def __init__(self, metric: str, is_wrong: Callable[[float], bool], steps: int):
        self.metric = metric
        self._is_wrong = is_wrong
        self._steps = steps
        self._in_a_row = 0

    def begins_with(self, value: float | None) -> bool:
        """Adds the metric's next value. Returns True if the alarm begins with it."""
        if value is None:
            return False
        self._in_a_row = self._in_a_row + 1 if self._is_wrong(value) else 0
        return self._in_a_row == self._steps
