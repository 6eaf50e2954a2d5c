"""Tests whether draws depend on each other, within a choice, between choices, and between requests.

`draws` maps each token to a number that is uniform in [0, 1] if it was drawn correctly. The bit "above one
half" is then a fair coin. If draws are independent, two bits agree with probability 1/2, and the number of
ones in a request is binomial.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import comb

from contracts.conformance.inference.draws import FALSE_ALARM, chance

Choice = Sequence[bool]  # the bit of each token
Request = Sequence[Choice]


def dependence(requests: Sequence[Request], slack: float) -> str | None:
    """Returns a description of dependent draws, or None.

    requests: in the order in which they were sent. slack: allowed error of a bit's probability.
    """
    for what, pairs in _pairs(requests).items():
        alike = sum(one == other for one, other in pairs)
        if chance(alike, len(pairs), 0.5 - slack, 0.5 + slack) < FALSE_ALARM:
            return f"{what}: {alike} of {len(pairs)} pairs lie in the same half of their distributions"
    return _unevenness([[choice[0] for choice in request] for request in requests], slack)


def _pairs(requests: Sequence[Request]) -> dict[str, list[tuple[bool, bool]]]:
    """Returns pairs of bits by kind.

    Within a kind, each pair has a bit that no earlier pair has, so that agreements are independent.
    """
    found: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for request in requests:
        for choice in request:
            found["successive tokens"] += zip(choice, choice[1:], strict=False)
        for one, other in zip(request, request[1:], strict=False):
            _add(found, "neighbouring choices", one, other)
        half = len(request) // 2
        for one, other in zip(request[:half], request[half:], strict=False):
            _add(found, "choices half of a request apart", one, other)
        if len(request) > 1:
            _add(found, "the first two choices", *request[:2])
    for before, request in zip(requests, requests[1:], strict=False):
        for one, other in zip(before, request, strict=False):
            _add(found, "successive requests", one, other)
    return found


def _add(found: dict[str, list[tuple[bool, bool]]], what: str, one: Choice, other: Choice) -> None:
    """Adds pairs of equal positions and of adjacent positions, because noise may be reused a token later."""
    found[what] += zip(one, other, strict=False)
    found[f"{what}, one token later"] += zip(one[1:], other, strict=False)
    found[f"{what}, one token earlier"] += zip(one, other[1:], strict=False)


def _unevenness(requests: Sequence[Choice], slack: float) -> str | None:
    """Returns a description if the numbers of ones among first tokens are not binomial, or None."""
    n = min(map(len, requests), default=0)
    distances = [abs(2 * sum(request[:n]) - n) for request in requests]
    off = n * slack
    for most in range(n):
        expected = sum(comb(n, ones) for ones in range(n + 1) if abs(2 * ones - n) <= most) / 2**n
        count = sum(distance <= most for distance in distances)
        if chance(count, len(distances), max(0.0, expected - off), min(1.0, expected + off)) < FALSE_ALARM:
            return (
                f"choices of a request: in {count} of {len(distances)} requests, {n} choices lie in both "
                f"halves of their distribution alike, up to a difference of {most}"
            )
    return None
