"""The definition of each objective, token by token in Python's floats, with its derivatives in closed form.

It is written from the papers' formulas, independently of `pipelinerl.objectives`: it uses no tensor and
nothing of that package. Notation: r = π/μ, A the advantage, w a token's weight in the loss, J is maximised.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple


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


def _expected(tokens: Sequence[Token], loss: float, sums: dict[str, float], **derivatives) -> Expected:
    zeros = {name: [0.0] * len(tokens) for name in ("by_logprob", "by_entropy", "by_value")}
    return Expected(loss=loss, sums=sums, **(zeros | derivatives))


class Term(NamedTuple):
    """The contribution of one token to J before its weight."""

    j: float
    by_logprob: float
    clipped: bool  # whether a bound changes the token's contribution


def _over_tokens(tokens: Sequence[Token], term: Callable[[Token], Term]) -> Expected:
    loss, slopes, clipped = 0.0, [], 0
    for token in tokens:
        if not token.in_loss:
            slopes.append(0.0)
            continue
        j, slope, is_clipped = term(token)
        loss -= token.weight * j
        slopes.append(-token.weight * slope)
        clipped += is_clipped
    return _expected(tokens, loss, {"clip_fraction": clipped}, by_logprob=slopes)


def reinforce(cap: float) -> Oracle:
    """sg(min(r, c)) A log π"""

    def term(token: Token) -> Term:
        weight = min(token.ratio, cap) * token.advantage
        return Term(weight * token.logprob, weight, token.ratio > cap)

    return lambda tokens: _over_tokens(tokens, term)


def cispo(low: float, high: float) -> Oracle:
    """sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π"""

    def term(token: Token) -> Term:
        weight = min(max(token.ratio, 1 - low), 1 + high) * token.advantage
        return Term(weight * token.logprob, weight, not 1 - low <= token.ratio <= 1 + high)

    return lambda tokens: _over_tokens(tokens, term)


def icepop(low: float, high: float) -> Oracle:
    """r A 1[low ≤ r ≤ high]; dr / d log π = r"""

    def term(token: Token) -> Term:
        if not math.log(low) <= token.log_ratio <= math.log(high):
            return Term(0.0, 0.0, True)
        return Term(token.ratio * token.advantage, token.ratio * token.advantage, False)

    return lambda tokens: _over_tokens(tokens, term)


def _surrogate(ratio: float, advantage: float, low: float, high: float) -> Term:
    """min(ρ A, clip(ρ) A) of a ratio with dρ / d log π = ρ. The clip acts where it is the smaller one."""
    plain, clipped = ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage
    return Term(plain, plain, False) if plain <= clipped else Term(clipped, 0.0, True)


def ppo_clip(low: float, high: float) -> Oracle:
    return lambda tokens: _over_tokens(tokens, lambda t: _surrogate(t.ratio, t.advantage, low, high))


def two_sided_clip(low: float, high: float, delta: float) -> Oracle:
    """As ppo_clip, with r at most δ where A < 0."""

    def term(token: Token) -> Term:
        if token.advantage < 0 and token.ratio > delta:
            return Term(delta * token.advantage, 0.0, True)
        return _surrogate(token.ratio, token.advantage, low, high)

    return lambda tokens: _over_tokens(tokens, term)


def decoupled_ppo(low: float, high: float, cap: float) -> Oracle:
    """(π_prox / μ) min(ρ A, clip(ρ) A), ρ = π / π_prox, nothing where π_prox / μ is above the cap. Without
    π_prox it is π itself, held fixed."""

    def term(token: Token) -> Term:
        proximal = token.logprob if token.proximal is None else token.proximal
        correction = math.exp(proximal - token.behaviour)
        if correction > cap:
            return Term(0.0, 0.0, True)
        inner = _surrogate(math.exp(token.logprob - proximal), token.advantage, low, high)
        return Term(correction * inner.j, correction * inner.by_logprob, inner.clipped)

    return lambda tokens: _over_tokens(tokens, term)


def _rollouts(tokens: Sequence[Token]) -> list[list[int]]:
    """Returns the indices of the tokens in the loss, for each rollout that has any."""
    by_rollout: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        if token.in_loss:
            by_rollout.setdefault(token.rollout, []).append(i)
    return list(by_rollout.values())


def gspo(low: float, high: float) -> Oracle:
    """min(s A, clip(s) A) of each rollout, s = exp(mean log r) over its n tokens; ds / d log π = s / n"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, clipped = 0.0, [0.0] * len(tokens), 0
        for members in _rollouts(tokens):
            n = len(members)
            s = math.exp(fmean(tokens[i].log_ratio for i in members))
            weight = fmean(tokens[i].weight for i in members)
            term = _surrogate(s, fmean(tokens[i].advantage for i in members), low, high)
            loss -= weight * term.j
            clipped += n * term.clipped
            for i in members:
                slopes[i] = -weight * term.by_logprob / n
        return _expected(tokens, loss, {"clip_fraction": clipped}, by_logprob=slopes)

    return oracle


def mirror_descent(tau: float) -> Oracle:
    """Σ A log π − τ/2 (Σ log r)² of each rollout"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, penalty = 0.0, [0.0] * len(tokens), 0.0
        for members in _rollouts(tokens):
            weight = fmean(tokens[i].weight for i in members)
            log_ratio = sum(tokens[i].log_ratio for i in members)
            loss -= weight * sum(tokens[i].advantage * tokens[i].logprob for i in members)
            loss += weight * tau / 2 * log_ratio**2
            penalty += log_ratio**2
            for i in members:
                slopes[i] = -weight * (tokens[i].advantage - tau * log_ratio)
        return _expected(tokens, loss, {"mirror_penalty": penalty}, by_logprob=slopes)

    return oracle


def kl_to_reference(coefficient: float) -> Oracle:
    """β (exp(d) − d − 1), d = log ref − log π, constant above 20; by log π: 1 − exp(d)"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, divergence = 0.0, [0.0] * len(tokens), 0.0
        for i, token in enumerate(tokens):
            if token.in_loss:
                d = min(token.reference - token.logprob, 20.0)
                k3 = math.exp(d) - d - 1
                loss += coefficient * token.weight * k3
                divergence += k3
                slopes[i] = coefficient * token.weight * (1 - math.exp(d)) if d < 20 else 0.0
        return _expected(tokens, loss, {"kl_to_reference": divergence}, by_logprob=slopes)

    return oracle


def entropy_bonus(coefficient: float) -> Oracle:
    """α H"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        weights = [coefficient * token.weight * token.in_loss for token in tokens]
        loss = -sum(weight * token.entropy for weight, token in zip(weights, tokens, strict=True))
        return _expected(tokens, loss, {}, by_entropy=[-weight for weight in weights])

    return oracle


def value_baseline(policy: Oracle, coefficient: float) -> Oracle:
    """The policy's loss with A = R − V, V held fixed, and β ½ (V − R)²"""

    def oracle(tokens: Sequence[Token]) -> Expected:
        fields = [vars(token) | {"advantage": token.advantage - token.value} for token in tokens]
        loss, by_logprob, by_entropy, _, sums = policy([Token(**values) for values in fields])
        slopes, error = [0.0] * len(tokens), 0.0
        for i, token in enumerate(tokens):
            if token.in_loss:
                miss = token.value - token.advantage
                loss += coefficient * token.weight * miss**2 / 2
                error += miss**2
                slopes[i] = coefficient * token.weight * miss
        return Expected(loss, by_logprob, by_entropy, slopes, {**sums, "value_error": error})

    return oracle
