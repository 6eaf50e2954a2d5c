"""Ratios of timings that were taken alternately, so that a busy machine slows both."""

import numpy as np


def ratio_of_medians(numerator: list[float], denominator: list[float]) -> str:
    """Returns the ratio of the medians, with the interval of 95 % of 2000 bootstrap draws.

    The i-th timings of both lists were taken together.
    """
    generator = np.random.default_rng(0)
    pairs = np.array([numerator, denominator])  # [2, N]
    draws = generator.integers(pairs.shape[1], size=(2000, pairs.shape[1]))
    medians = np.median(pairs[:, draws], axis=2)  # [2, 2000]
    low, high = np.quantile(medians[0] / medians[1], [0.025, 0.975])
    ratio = np.divide(*np.median(pairs, axis=1))
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"
