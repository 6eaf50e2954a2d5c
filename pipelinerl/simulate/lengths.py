"""Distributions of the number of tokens of an answer. Pure."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Lengths = Callable[[np.random.Generator], int]


def lengths_of(text: str, longest: int) -> Lengths:
    """Returns the distribution that a command names; nothing is longer than `longest`.

    `constant:N`; `lognormal:MEDIAN,SIGMA`, where SIGMA is that of the logarithm. Raises ValueError.
    """
    kind, _, numbers = text.partition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
        if not all(0 <= value < math.inf for value in values) or values[0] < 1:
            raise ValueError
        match kind, values:
            case "constant", [value]:
                return lambda _: min(round(value), longest)
            case "lognormal", [median, sigma]:
                return lambda random: _within(random.lognormal(math.log(median), sigma), longest)
    except ValueError:
        pass
    raise ValueError(f"{text}: write constant:N or lognormal:MEDIAN,SIGMA, in tokens")


def as_measured(measured: Sequence[int]) -> Lengths:
    """Returns the distribution of recorded lengths."""
    return lambda random: int(random.choice(measured))


def _within(value: float, longest: int) -> int:
    return max(1, min(round(value), longest))
