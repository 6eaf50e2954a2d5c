"""The clipped surrogate, shared by several objectives.

min(ρ A, clip(ρ, 1 − ε_low, 1 + ε_high) A)        arXiv 1707.06347, eq. 7
"""

import math

import torch


def check_epsilons(low: float, high: float) -> None:
    if not (0 < low <= 1 and 0 < high < math.inf):
        raise ValueError(f"clip bounds need 0 < epsilon_low <= 1 and epsilon_high > 0, not {low} and {high}")


def clipped_surrogate(
    ratio: torch.Tensor, advantages: torch.Tensor, epsilon_low: float, epsilon_high: float
) -> torch.Tensor:
    """Returns the clipped surrogate, elementwise. `ratio` and `advantages` have the same shape."""
    clipped = ratio.clamp(1 - epsilon_low, 1 + epsilon_high)
    return torch.minimum(ratio * advantages, clipped * advantages)


def clip_is_active(
    ratio: torch.Tensor, advantages: torch.Tensor, epsilon_low: float, epsilon_high: float
) -> torch.Tensor:
    """Returns a mask, of the same shape, of the elements whose gradient the clip removes."""
    too_high = (ratio > 1 + epsilon_high) & (advantages > 0)
    too_low = (ratio < 1 - epsilon_low) & (advantages < 0)
    return too_high | too_low
