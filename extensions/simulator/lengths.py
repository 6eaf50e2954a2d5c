"""Distributions of the length of answers, in tokens. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 1000  # samples for a mean or a share


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths, truncated at `longest` tokens. draw: returns a length before truncation."""

    draw: Callable[[np.random.Generator], float]
    longest: int

    def __call__(self, random: np.random.Generator) -> int:
        return round(max(1, min(self.draw(random), self.longest)))

    @property
    def mean(self) -> float:
        random = np.random.default_rng(0)
        return float(np.mean([self(random) for _ in range(DRAWS)]))

    @property
    def share_cut(self) -> float:
        random = np.random.default_rng(0)
        return float(np.mean([self.draw(random) > self.longest for _ in range(DRAWS)]))


def lengths_of(text: str, longest: int) -> Lengths:
    """Returns the distribution `constant:N` or `lognormal:MEDIAN,SIGMA`, truncated at `longest`.

    SIGMA is the logarithm's standard deviation. Raises ValueError for another text.
    """
    kind, _, numbers = text.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
        if not all(0 <= value < math.inf for value in values) or values[0] < 1:
            raise ValueError
        match kind, values:
            case "constant", [value]:
                return Lengths(lambda _: value, longest)
            case "lognormal", [median, sigma]:
                return Lengths(lambda random: random.lognormal(math.log(median), sigma), longest)
    except ValueError:
        pass
    raise ValueError(f"{text}: write constant:N or lognormal:MEDIAN,SIGMA, in tokens")


def as_measured(measured: Sequence[int], longest: int) -> Lengths:
    return Lengths(lambda random: random.choice(measured), longest)
