"""The definition of advantages that span a step, or the tokens of a rollout, in Python's floats.

It is written from the papers' formulas, independently of `pipelinerl`, like `oracles`.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

Group = Sequence[Mapping[str, float]]  # of each rollout, its reward components


def gdpo(groups: Sequence[Group], weights: Mapping[str, float]) -> list[list[float]]:
    """Returns the advantages of a step's groups (arXiv 2601.05242), with TRL's 1e-4 beside each deviation.

    Each component is normalised in its group: A_k = (r_k − mean_k) / (std_k + 1e-4). Their weighted sum is
    normalised over the step in the same way.
    """
    sums = [_weighted_sums(group, weights) for group in groups]
    of_step = [value for of_group in sums for value in of_group]
    mean, deviation = fmean(of_step), stdev(of_step)
    return [[(value - mean) / (deviation + 1e-4) for value in of_group] for of_group in sums]


def _weighted_sums(group: Group, weights: Mapping[str, float]) -> list[float]:
    sums = [0.0] * len(group)
    for name, weight in weights.items():
        column = [components[name] for components in group]
        for i, reward in enumerate(column):
            sums[i] += weight * (reward - fmean(column)) / (stdev(column) + 1e-4)
    return sums


def gae(rewards: Sequence[float], values: Sequence[float], lam: float) -> list[float]:
    """Returns A_t = δ_t + λ A_{t+1} with δ_t = r_t + V_{t+1} − V_t (arXiv 1506.02438, eq. 11 to 16, γ = 1).

    The value after the last token is 0, and so is the advantage.
    """
    advantages = [0.0] * len(rewards)
    next_value, next_advantage = 0.0, 0.0
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + next_value - values[t]
        advantages[t] = delta + lam * next_advantage
        next_value, next_advantage = values[t], advantages[t]
    return advantages
