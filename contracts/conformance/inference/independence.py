"""Decides whether draws depend on each other: tokens of a choice, of the choices of a request, of requests.

Each token becomes a number that is uniform between 0 and 1 if it was drawn correctly (`draws`). Whether it is
above one half is a fair bit. Of independent draws, two such bits agree in half of all pairs, and a request
has as many ones as so many fair coins. Both probabilities are exact.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import comb

from contracts.conformance.inference.draws import FALSE_ALARM, chance

Choice = Sequence[bool]  # the bit of each token
Request = Sequence[Choice]


def dependence(requests: Sequence[Request], slack: float) -> str | None:
    """Returns a description of draws that depend on each other, or None.

    requests: in the order in which they were sent. slack: the allowed error of a bit's probability.
    """
    for what, pairs in _pairs(requests).items():
        alike = sum(one == other for one, other in pairs)
        if chance(alike, len(pairs), 0.5 - slack, 0.5 + slack) < FALSE_ALARM:
            return f"{what}: {alike} of {len(pairs)} pairs lie in the same half of their distributions"
    return _unevenness([[choice[0] for choice in request] for request in requests], slack)


def _pairs(requests: Sequence[Request]) -> dict[str, list[tuple[bool, bool]]]:
    """Returns pairs of bits, by what they are of. Of each kind, every pair has a bit that no earlier one has.

    So agreements are independent of each other too.
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
    """Adds pairs of the same position, and of positions one apart: noise may be used again a token later."""
    found[what] += zip(one, other, strict=False)
    found[f"{what}, one token later"] += zip(one[1:], other, strict=False)
    found[f"{what}, one token earlier"] += zip(one, other[1:], strict=False)


def _unevenness(requests: Sequence[Choice], slack: float) -> str | None:
    """Returns what is wrong with the number of ones among the first tokens of each request, or None."""
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
