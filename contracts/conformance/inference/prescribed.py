"""Compares sampled tokens with those that draw keys prescribe. G17 uses it."""

import hashlib
from collections.abc import Sequence

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.verdicts import GuaranteeError
from contracts.draws import uniform


def key_of(name: object) -> str:
    """Returns a key, in hexadecimal digits, that is the same for the same name."""
    return hashlib.sha256(repr(name).encode()).hexdigest()


def check_prescribed(
    bench: Bench,
    sample: Sample,
    key: str,
    weights: Weights,
    where: str,
    temperature: float = 1.0,
    span: Sequence[int] | None = None,
) -> float:
    """Returns the largest distance, in probability, of a token's interval from its prescribed number.

    A log-probability that is off by the tolerance moves the ends of an interval by at most as much.
    span: (start, end) of the tokens that `weights` sampled, after reading all before; None = all.
    Raises GuaranteeError beyond the tolerance.
    """
    start, end = span or (0, len(sample.token_ids))
    log_p = bench.reference.distribution(
        weights, sample.prompt_token_ids, sample.token_ids[:end], temperature
    )
    sums = log_p.exp().cumsum(-1, dtype=torch.float64)
    worst = 0.0
    for number in range(start, end):
        token_id = sample.token_ids[number]
        drawn = uniform(bytes.fromhex(key), number) * float(sums[number, -1])
        below = float(sums[number, token_id - 1]) if token_id else 0.0
        distance = max(0.0, below - drawn, drawn - float(sums[number, token_id]))
        worst = max(worst, distance)
        if distance > bench.settings.tolerance * max(1.0, 1 / temperature):
            right = int(torch.searchsorted(sums[number], drawn, right=True))
            raise GuaranteeError(
                f"token {number} is {token_id}, whose interval is {distance:.4f} from the prescribed number",
                f"{right}, which holds it, by the key {key}",
                where,
            )
    return worst
