"""The definition of each objective, token by token in Python's floats, with its derivatives in closed form.

It is written from the papers' formulas, independently of `pipelinerl.objectives`: it uses no tensor and
nothing of that package. Notation: r = π/μ, A the advantage, w a token's weight in the loss, J is maximised.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from tests.objectives.advantage_oracles import gae


@dataclass(frozen=True)
class Token:
    rollout: str
    in_loss: bool
    weight: float
    advantage: float
    logprob: float  # log π
    behaviour: float  # log μ
    reference: float
    proximal: float | None
    entropy: float
    value: float
    start_value: float | None = None  # of the value head before the step's first update

    @property
    def log_ratio(self) -> float:
        return self.logprob - self.behaviour

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)


class Expected(NamedTuple):
    """The loss of one batch, and its derivatives by each token's scores."""

    loss: float
    by_logprob: list[float]
    by_entropy: list[float]
    by_value: list[float]
    sums: dict[str, float]


Oracle = Callable[[Sequence[Token]], Expected]


def base_logprob(token: Token, base: str) -> float:
    """Returns log μ or log π_prox. Without π_prox it is π itself, held fixed."""
    proximal = token.logprob if token.proximal is None else token.proximal
    return {"behaviour": token.behaviour, "proximal": proximal}[base]


def expected(tokens: Sequence[Token], loss: float, sums: dict[str, float], **derivatives) -> Expected:
    zeros = {name: [0.0] * len(tokens) for name in ("by_logprob", "by_entropy", "by_value")}
    return Expected(loss=loss, sums=sums, **(zeros | derivatives))


class Term(NamedTuple):
    """The contribution of one token to J before its weight."""

    j: float
    by_logprob: float
    clipped: bool  # whether a bound changes the token's contribution


def over_tokens(tokens: Sequence[Token], term: Callable[[Token], Term]) -> Expected:
    loss, slopes, clipped = 0.0, [], 0
    for token in tokens:
        if not token.in_loss:
            slopes.append(0.0)
            continue
        j, slope, is_clipped = term(token)
        loss -= token.weight * j
        slopes.append(-token.weight * slope)
        clipped += is_clipped
    return expected(tokens, loss, {"clip_fraction": clipped}, by_logprob=slopes)


def reinforce(cap: float) -> Oracle:
    """sg(min(r, c)) A log π"""

    def term(token: Token) -> Term:
        weight = min(token.ratio, cap) * token.advantage
        return Term(weight * token.logprob, weight, token.ratio > cap)

    return lambda tokens: over_tokens(tokens, term)


def cispo(low: float, high: float) -> Oracle:
    """sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π"""

    def term(token: Token) -> Term:
        weight = min(max(token.ratio, 1 - low), 1 + high) * token.advantage
        return Term(weight * token.logprob, weight, not 1 - low <= token.ratio <= 1 + high)

    return lambda tokens: over_tokens(tokens, term)


def icepop(low: float, high: float) -> Oracle:
    """r A 1[low ≤ r ≤ high]; dr / d log π = r"""

    def term(token: Token) -> Term:
        if not math.log(low) <= token.log_ratio <= math.log(high):
            return Term(0.0, 0.0, True)
        return Term(token.ratio * token.advantage, token.ratio * token.advantage, False)

    return lambda tokens: over_tokens(tokens, term)


def _surrogate(ratio: float, advantage: float, low: float, high: float) -> Term:
    """min(ρ A, clip(ρ) A) of a ratio with dρ / d log π = ρ. The clip acts where it is the smaller one."""
    plain, clipped = ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage
    return Term(plain, plain, False) if plain <= clipped else Term(clipped, 0.0, True)


def ppo_clip(low: float, high: float) -> Oracle:
    return lambda tokens: over_tokens(tokens, lambda t: _surrogate(t.ratio, t.advantage, low, high))


def two_sided_clip(low: float, high: float, delta: float) -> Oracle:
    """As ppo_clip, with r at most δ where A < 0."""

    def term(token: Token) -> Term:
        if token.advantage < 0 and token.ratio > delta:
            return Term(delta * token.advantage, 0.0, True)
        return _surrogate(token.ratio, token.advantage, low, high)

    return lambda tokens: over_tokens(tokens, term)


def decoupled_ppo(low: float, high: float, cap: float) -> Oracle:
    """(π_prox / μ) min(ρ A, clip(ρ) A), ρ = π / π_prox, nothing where π_prox / μ is above the cap. Without
    π_prox it is π itself, held fixed."""

    def term(token: Token) -> Term:
        proximal = base_logprob(token, "proximal")
        correction = math.exp(proximal - token.behaviour)
        if correction > cap:
            return Term(0.0, 0.0, True)
        inner = _surrogate(math.exp(token.logprob - proximal), token.advantage, low, high)
        return Term(correction * inner.j, correction * inner.by_logprob, inner.clipped)

    return lambda tokens: over_tokens(tokens, term)


def rollouts_of(tokens: Sequence[Token]) -> list[list[int]]:
    """Returns the indices of the tokens in the loss, for each rollout that has any."""
    by_rollout: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        if token.in_loss:
            by_rollout.setdefault(token.rollout, []).append(i)
    return list(by_rollout.values())


def gspo(low: float, high: float, base: str = "behaviour", by_token: bool = False) -> Oracle:
    """J is min(s A, clip(s) A) of each rollout. Here s = exp(mean log r) over its n tokens, r = π / π_base.

    So ds / d log π = s / n. By token (arXiv 2507.18071, eq. 13 and 14), J is the mean over t of
    min(s_t A_t, clip(s_t) A_t). There s_t = sg(s) π_t / sg(π_t), so ds_t / d log π_t = s.
    """

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, clipped = 0.0, [0.0] * len(tokens), 0
        for members in rollouts_of(tokens):
            n = len(members)
            s = math.exp(fmean(tokens[i].logprob - base_logprob(tokens[i], base) for i in members))
            weight = fmean(tokens[i].weight for i in members)
            mean_advantage = fmean(tokens[i].advantage for i in members)
            for i in members:
                term = _surrogate(s, tokens[i].advantage if by_token else mean_advantage, low, high)
                loss -= weight * term.j / n
                slopes[i] = -weight * term.by_logprob / n
                clipped += term.clipped
        return expected(tokens, loss, {"clip_fraction": clipped}, by_logprob=slopes)

    return oracle


def mirror_descent(tau: float, base: str = "behaviour") -> Oracle:
    """J is Σ A log π − τ/2 (Σ log r)² of each rollout, with r = π / π_base."""

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, penalty = 0.0, [0.0] * len(tokens), 0.0
        for members in rollouts_of(tokens):
            weight = fmean(tokens[i].weight for i in members)
            log_ratio = sum(tokens[i].logprob - base_logprob(tokens[i], base) for i in members)
            loss -= weight * sum(tokens[i].advantage * tokens[i].logprob for i in members)
            loss += weight * tau / 2 * log_ratio**2
            penalty += log_ratio**2
            for i in members:
                slopes[i] = -weight * (tokens[i].advantage - tau * log_ratio)
        return expected(tokens, loss, {"mirror_penalty": penalty}, by_logprob=slopes)

    return oracle


def _divergence(token: Token, estimator: str) -> tuple[float, float]:
    """Returns the estimate k of x = log π − log ref, and dk / d log π. In k3, −x is constant above 20."""
    x = token.logprob - token.reference
    if estimator == "k3":
        d = min(-x, 20.0)
        return math.exp(d) - d - 1, 1 - math.exp(d) if d < 20 else 0.0
    return {"k1": (x, 1.0), "k2": (x**2 / 2, x)}[estimator]


def kl_to_reference(coefficient: float, estimator: str = "k3", unbiased: bool = False) -> Oracle:
    """The loss is β k, or β r k where it is unbiased, with log r constant above 20.

    Then d(r k) / d log π = r k + r k' for k1 and k3. With k2, r is held fixed and the derivative is r k'.
    """

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, divergence = 0.0, [0.0] * len(tokens), 0.0
        for i, token in enumerate(tokens):
            if token.in_loss:
                k, slope = _divergence(token, estimator)
                if unbiased:
                    ratio = math.exp(min(token.log_ratio, 20.0))
                    ratio_slope = ratio if token.log_ratio < 20 and estimator != "k2" else 0.0
                    slope = ratio_slope * k + ratio * slope
                    k = ratio * k
                loss += coefficient * token.weight * k
                divergence += k
                slopes[i] = coefficient * token.weight * slope
        return expected(tokens, loss, {"kl_to_reference": divergence}, by_logprob=slopes)

    return oracle


def entropy_bonus(coefficient: float) -> Oracle:
    """α H"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        weights = [coefficient * token.weight * token.in_loss for token in tokens]
        loss = -sum(weight * token.entropy for weight, token in zip(weights, tokens, strict=True))
        return expected(tokens, loss, {}, by_entropy=[-weight for weight in weights])

    return oracle


def _value_error(token: Token, target: float, clip: float | None) -> tuple[float, float]:
    """Returns the value's squared error, the larger one of two where a clip acts, and half its derivative.

    The other error is that of V moved to at most e from V_0. It does not depend on V outside these bounds.
    """
    miss = token.value - target
    if clip is None or token.start_value is None or abs(token.value - token.start_value) <= clip:
        return miss**2, miss
    change = min(max(token.value - token.start_value, -clip), clip)
    clipped_miss = token.start_value + change - target
    return (miss**2, miss) if miss**2 >= clipped_miss**2 else (clipped_miss**2, 0.0)


def _gae_of_rollouts(tokens: Sequence[Token], starts: Sequence[float], lam: float) -> list[float]:
    """Returns the advantage of each token in the loss: GAE over its rollout, which is done at the end.

    The reward of a token is the return from it on, minus that from the next one on.
    """
    advantages = [0.0] * len(tokens)
    for members in rollouts_of(tokens):
        returns = [tokens[i].advantage for i in members] + [0.0]
        rewards = [returns[t] - returns[t + 1] for t in range(len(members))]
        of_rollout = gae(rewards, [starts[i] for i in members], lam)
        for i, advantage in zip(members, of_rollout, strict=True):
            advantages[i] = advantage
    return advantages


def value_baseline(
    policy: Oracle, coefficient: float, clip: float | None = None, lam: float = 1.0, value_lam: float = 1.0
) -> Oracle:
    """The loss is the policy's with A = GAE(λ) of V_0, held fixed, and β ½ (V − T)².

    V_0 is the initial value, or V where there is none. T is V_0 plus GAE(λ_value), held fixed. With a clip e,
    (V − T)² becomes the larger one of itself and (V_0 + clip(V − V_0, −e, e) − T)².
    """

    def oracle(tokens: Sequence[Token]) -> Expected:
        starts = [token.value if token.start_value is None else token.start_value for token in tokens]
        advantages = _gae_of_rollouts(tokens, starts, lam)
        of_values = _gae_of_rollouts(tokens, starts, value_lam)
        targets = [start + advantage for start, advantage in zip(starts, of_values, strict=True)]
        with_advantages = [
            replace(token, advantage=advantage) for token, advantage in zip(tokens, advantages, strict=True)
        ]
        loss, by_logprob, by_entropy, _, sums = policy(with_advantages)
        slopes, error = [0.0] * len(tokens), 0.0
        for i, token in enumerate(tokens):
            if token.in_loss:
                squared, half_slope = _value_error(token, targets[i], clip)
                loss += coefficient * token.weight * squared / 2
                error += (token.value - targets[i]) ** 2
                slopes[i] = coefficient * token.weight * half_slope
        return Expected(loss, by_logprob, by_entropy, slopes, {**sums, "value_error": error})

    return oracle


def distillation(policy: Oracle, reward_weight: float, teacher_weight: float) -> Oracle:
    """The policy's loss with A = α A + β (log teacher − log π), held fixed, the difference within ±20"""

    def advantage(token: Token) -> float:
        gap = min(max(token.reference - token.logprob, -20.0), 20.0)
        return reward_weight * token.advantage + teacher_weight * gap

    def oracle(tokens: Sequence[Token]) -> Expected:
        found = policy([Token(**vars(token) | {"advantage": advantage(token)}) for token in tokens])
        gaps = [token.logprob - token.reference for token in tokens if token.in_loss]
        gap = sum(min(max(gap, -20.0), 20.0) for gap in gaps)
        return found._replace(sums={**found.sums, "teacher_gap": gap})

    return oracle


def cross_entropy() -> Oracle:
    """log π"""

    def loss_of(tokens: Sequence[Token]) -> Expected:
        trained = [t for t in tokens if t.in_loss]
        return expected(
            tokens,
            -sum(t.weight * t.logprob for t in trained),
            {"cross_entropy": -sum(t.logprob for t in trained)},
            by_logprob=[-t.weight if t.in_loss else 0.0 for t in tokens],
        )

    return loss_of


def dpo(beta: float) -> Oracle:
    """log σ(β Σ A (log π − log π_ref)) once for each rollout, with the mean weight of its tokens."""

    def loss_of(tokens: Sequence[Token]) -> Expected:
        loss, sums = 0.0, {"preference_margin": 0.0, "preferred": 0}
        slopes = [0.0] * len(tokens)
        for rollout in dict.fromkeys(t.rollout for t in tokens):
            own = [i for i, t in enumerate(tokens) if t.rollout == rollout and t.in_loss]
            if not own:
                continue
            weight = fmean(tokens[i].weight for i in own)
            margin = beta * sum(tokens[i].advantage * (tokens[i].logprob - tokens[i].reference) for i in own)
            loss += weight * math.log1p(math.exp(-margin))
            for i in own:
                slopes[i] = -weight * beta * tokens[i].advantage / (1 + math.exp(margin))
            sums["preference_margin"] += len(own) * margin
            sums["preferred"] += len(own) * (margin > 0)
        return expected(tokens, loss, sums, by_logprob=slopes)

    return loss_of
