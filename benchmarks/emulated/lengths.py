"""How long answers are: the same lengths in the same order for every run of a seed."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """A lognormal distribution of answers' lengths in tokens; `sigma` 0 makes all of them equal."""

    mean: float
    sigma: float
    seed: int = 0

    def of(self, number: int) -> int:
        """Returns the length of the answer of this number."""
        normal = random.Random(f"{self.seed}-{number}").gauss(0.0, 1.0)
        return max(1, round(self.mean * math.exp(self.sigma * normal - self.sigma**2 / 2)))
