"""The lengths of responses: the same lengths in the same order for every run of a seed."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution of response lengths in tokens; with `sigma` 0 all are equal."""

    mean: float
    sigma: float
    seed: int = 0

    def of(self, number: int) -> int:
        """Returns the length of response `number`."""
        normal = random.Random(f"{self.seed}-{number}").gauss(0.0, 1.0)
        return max(1, round(self.mean * math.exp(self.sigma * normal - self.sigma**2 / 2)))
