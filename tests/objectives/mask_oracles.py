"""The definition of each rule that masks or truncates tokens, in Python's floats.

It is written independently of `pipelinerl.objectives`, like `oracles`. A rule gives each token a factor of
its weight. Factors are held fixed: they have no derivative. ρ is the ratio that a rule sees: π / μ around
the behaviour policy, π_prox / μ around the proximal one. Bounds are inside what a rule keeps.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import fmean

from tests.objectives.oracles import Expected, Oracle, Token, base_logprob, rollouts_of

# The factor of each token, and whether the rule touches it, from a batch and "behaviour" or "proximal".
Factors = Callable[[Sequence[Token], str], list[tuple[float, bool]]]

UNTOUCHED = (1.0, False)  # what a token outside the loss gets


def _log_rho(token: Token, around: str) -> float:
    """Returns log ρ. Without π_prox it is that of π."""
    policy = {"behaviour": token.logprob, "proximal": base_logprob(token, "proximal")}[around]
    return policy - token.behaviour


def _exp(log_rho: float) -> float:
    """Returns ρ, which is at most exp(20)."""
    return math.exp(min(log_rho, 20.0))


def _log(bound: float) -> float:
    return math.log(bound) if bound > 0 else -math.inf


def _truncated(log_rho: float, high: float) -> tuple[float, bool]:
    return min(_exp(log_rho), high), log_rho > _log(high)


def _kept(factor: float, is_kept: bool) -> tuple[float, bool]:
    """Returns the factor, or zero where the rule drops the token. It touches those of factor zero."""
    kept_factor = factor if is_kept else 0.0
    return kept_factor, kept_factor == 0


def _within(log_rho: float, low: float, high: float) -> bool:
    return _log(low) <= log_rho <= _log(high)


def _by_token(factor: Callable[[float], tuple[float, bool]]) -> Factors:
    """Returns the rule whose factor depends on the token's own log ρ."""

    def factors(tokens: Sequence[Token], around: str) -> list[tuple[float, bool]]:
        return [factor(_log_rho(token, around)) if token.in_loss else UNTOUCHED for token in tokens]

    return factors


def _by_rollout(factor: Callable[[Token, list[float]], tuple[float, bool]]) -> Factors:
    """Returns the rule whose factor depends on the token and on log ρ of its rollout's tokens in the loss."""

    def factors(tokens: Sequence[Token], around: str) -> list[tuple[float, bool]]:
        found = [UNTOUCHED] * len(tokens)
        for members in rollouts_of(tokens):
            log_rhos = [_log_rho(tokens[i], around) for i in members]
            for i in members:
                found[i] = factor(tokens[i], log_rhos)
        return found

    return factors


def token_truncate(high: float) -> Factors:
    """The factor is min(ρ, high)."""
    return _by_token(lambda log_rho: _truncated(log_rho, high))


def token_mask(low: float, high: float) -> Factors:
    """The factor is ρ 1[low ≤ ρ ≤ high]."""
    return _by_token(lambda log_rho: _kept(_exp(log_rho), _within(log_rho, low, high)))


def sequence_truncate(high: float) -> Factors:
    """The factor is min(P, high), where P is the product of the rollout's ρ."""
    return _by_rollout(lambda _, log_rhos: _truncated(sum(log_rhos), high))


def sequence_mask(low: float, high: float) -> Factors:
    """The factor is P 1[low ≤ P ≤ high], where P is the product of the rollout's ρ."""
    return _by_rollout(lambda _, log_rhos: _kept(_exp(sum(log_rhos)), _within(sum(log_rhos), low, high)))


def geometric_mask(low: float, high: float) -> Factors:
    """The factor is 1[low ≤ G ≤ high], where G is the geometric mean of the rollout's ρ."""
    return _by_rollout(lambda _, log_rhos: _kept(1.0, _within(fmean(log_rhos), low, high)))


def smallest_ratio(low: float) -> Factors:
    """The factor is 1[low ≤ m], where m is the smallest of the rollout's ρ."""
    return _by_rollout(lambda _, log_rhos: _kept(1.0, _within(min(log_rhos), low, math.inf)))


def off_policy_sequence(delta: float) -> Factors:
    """The factor is 1[A ≥ 0 or D ≤ δ], where A and D are the means of A_t and −log ρ over the rollout."""

    def factors(tokens: Sequence[Token], around: str) -> list[tuple[float, bool]]:
        found = [UNTOUCHED] * len(tokens)
        for members in rollouts_of(tokens):
            divergence = fmean(-_log_rho(tokens[i], around) for i in members)
            advantage = fmean(tokens[i].advantage for i in members)
            for i in members:
                found[i] = _kept(1.0, advantage >= 0 or divergence <= delta)
        return found

    return factors


def masked(policy: Oracle, rules: Mapping[str, Factors], around: str = "behaviour") -> Oracle:
    """The loss is the policy's, with each token's weight times the product of its factors.

    Around the proximal policy, π_prox also takes the place of μ in the policy's loss. No token leaves the
    loss, so the lengths and means of rollouts stay as they are.
    """

    def oracle(tokens: Sequence[Token]) -> Expected:
        by_rule = {name: rule(tokens, around) for name, rule in rules.items()}
        reweighted = []
        for i, token in enumerate(tokens):
            product = math.prod(factors[i][0] for factors in by_rule.values())
            base = base_logprob(token, around)
            reweighted.append(replace(token, weight=token.weight * product, behaviour=base))
        found = policy(reweighted)
        touched = {
            f"masked_{name}": sum(is_touched for _, is_touched in factors)
            for name, factors in by_rule.items()
        }
        return found._replace(sums={**found.sums, **touched})

    return oracle


def entropy_selected(policy: Oracle, share: float) -> Oracle:
    """The loss is the policy's with the weight w n / s for the s selected of a rollout's n tokens, else 0.

    Selected are those with H ≥ h, where h is the ⌈share · n⌉-th largest entropy H of the rollout's tokens.
    """

    def oracle(tokens: Sequence[Token]) -> Expected:
        weights = [token.weight for token in tokens]
        total = 0
        for members in rollouts_of(tokens):
            entropies = sorted((tokens[i].entropy for i in members), reverse=True)
            least = entropies[math.ceil(Fraction(str(share)) * len(members)) - 1]
            selected = [i for i in members if tokens[i].entropy >= least]
            total += len(selected)
            for i in members:
                weights[i] *= len(members) / len(selected) if i in selected else 0.0
        found = policy([replace(token, weight=w) for token, w in zip(tokens, weights, strict=True)])
        return found._replace(sums={**found.sums, "selected_by_entropy": total})

    return oracle
