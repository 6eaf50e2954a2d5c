"""The definition of the objectives with a trust region in probabilities, and of advantages for pass@k.

It is written independently of `pipelinerl.objectives`, like `oracles`, and in the same notation.
"""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

from tests.objectives.oracles import Expected, Oracle, Term, Token, expected, over_tokens


def _change(token: Token) -> float:
    """Returns π − μ, the change of the token's probability."""
    return math.exp(token.logprob) - math.exp(token.behaviour)


def _where(keep: Callable[[Token], bool]) -> Oracle:
    """J is r A where a token is kept, with dr / d log π = r, and 0 elsewhere."""

    def term(token: Token) -> Term:
        if not keep(token):
            return Term(0.0, 0.0, True)
        return Term(token.ratio * token.advantage, token.ratio * token.advantage, False)

    return lambda tokens: over_tokens(tokens, term)


def dppo(low: float, high: float) -> Oracle:
    """J is r A, except where π is too far from μ on the side to which A pushes it (arXiv 2602.04879).

    That is π − μ > high where A > 0, and π − μ < −low elsewhere: the binary total variation.
    """

    def keep(token: Token) -> bool:
        return _change(token) <= high if token.advantage > 0 else _change(token) >= -low

    return _where(keep)


def ipo(epsilon: float) -> Oracle:
    """J is r A where |π − μ| ≤ ε."""
    return _where(lambda token: abs(_change(token)) <= epsilon)


def log_ratio_penalty(coefficient: float) -> Oracle:
    """The loss is κ (log r)²; by log π it is 2 κ log r."""

    def oracle(tokens: Sequence[Token]) -> Expected:
        loss, slopes, squares = 0.0, [0.0] * len(tokens), 0.0
        for i, token in enumerate(tokens):
            if token.in_loss:
                loss += coefficient * token.weight * token.log_ratio**2
                squares += token.log_ratio**2
                slopes[i] = 2 * coefficient * token.weight * token.log_ratio
        return expected(tokens, loss, {"squared_log_ratio": squares}, by_logprob=slopes)

    return oracle


def pass_at_k(rewards: list[float], k: int) -> list[float]:
    """Returns the advantages of n attempts for pass@k, over all subsets of k attempts (arXiv 2508.10751).

    A subset's reward is the largest one in it. The advantage of an attempt is the mean reward of the subsets
    that contain it, minus that of all subsets.
    """
    subsets = list(combinations(range(len(rewards)), k))
    rewards_of_subsets = [max(rewards[i] for i in subset) for subset in subsets]
    baseline = fmean(rewards_of_subsets)
    advantages = []
    for attempt in range(len(rewards)):
        containing = zip(subsets, rewards_of_subsets, strict=True)
        advantages.append(fmean(reward for subset, reward in containing if attempt in subset) - baseline)
    return advantages
