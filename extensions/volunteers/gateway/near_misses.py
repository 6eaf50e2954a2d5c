"""Whether a volunteer's near misses are too many to be rounding: a sequential test over its whole life.

A near miss is a token that passes only because of the tolerance. The test is an e-process: a mixture of
likelihood ratios against the honest rate, whose expectation is at most 1. By Ville's inequality an honest
volunteer exceeds `LIMIT` with a probability of at most 1 / LIMIT, however often it is looked at.
"""

import math

LIMIT = 1e6
FACTORS = 12  # alternatives: the honest rate times 2, 4, ... 2**FACTORS, below 1


def log_e_value(tokens: int, near_misses: int, honest_rate: float) -> float:
    """Returns the logarithm of the e-value of `near_misses` among `tokens`. honest_rate: in (0, 1)."""
    rates = [honest_rate * 2**power for power in range(1, FACTORS + 1)]
    rates = [rate for rate in rates if rate < 1] or [(1 + honest_rate) / 2]
    hits = tokens - near_misses
    ratios = [
        near_misses * math.log(rate / honest_rate) + hits * math.log((1 - rate) / (1 - honest_rate))
        for rate in rates
    ]
    largest = max(ratios)
    return largest + math.log(sum(math.exp(each - largest) for each in ratios) / len(ratios))


def are_too_many(tokens: int, near_misses: int, honest_rate: float) -> bool:
    return log_e_value(tokens, near_misses, honest_rate) > math.log(LIMIT)


def binomial_quantile(trials: int, rate: float, tail: float) -> int:
    """Returns the smallest k for which a Binomial(trials, rate) exceeds k with a probability below `tail`."""
    if rate <= 0:
        return 0
    if rate >= 1:
        return trials
    above = 1.0
    log_p = trials * math.log1p(-rate)
    for k in range(trials + 1):
        above -= math.exp(log_p)
        if above < tail:
            return k
        log_p += (
            math.log(trials - k) - math.log(k + 1) + math.log(rate) - math.log1p(-rate) if k < trials else 0
        )
    return trials
