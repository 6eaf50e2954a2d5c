"""Compares sampled tokens with those that draw keys prescribe. G17 uses it."""

import hashlib
from dataclasses import dataclass

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.reference import Weights
from contracts.conformance.inference.samples import Sample
from contracts.conformance.verdicts import GuaranteeError
from contracts.draws import uniform

NEAR = 1e-5  # a larger distance is a miss
MISSED = 0.002  # share of the tokens that may be, beside the tolerance
FEWEST = 100  # tokens of which a share says something


def key_of(name: object) -> str:
    """Returns a key, in hexadecimal digits, that is the same for the same name."""
    return hashlib.sha256(repr(name).encode()).hexdigest()


@dataclass
class Prescribed:
    """What was found of all tokens: their number, the largest distance, and how many are no near ones."""

    bench: Bench
    tokens: int = 0
    worst: float = 0.0
    missed: int = 0

    def summary(self) -> str:
        return f"within {self.worst:.0e}"

    def check(
        self,
        sample: Sample,
        key: str,
        weights: Weights,
        where: str,
        temperature: float = 1.0,
        span: tuple[int, int] | None = None,
    ) -> None:
        """Compares the tokens of a sample, or of a span of it.

        The distance of a token is that of its interval from the prescribed number, in probability. A scaled
        logit that is off by d moves the ends of an interval by d / 2 at most.
        span: start and end of the tokens that `weights` sampled, after they had read all before.
        Raises GuaranteeError for a distance beyond the tolerance, and if too many are not near.
        """
        start, end = span or (0, len(sample.token_ids))
        ids = sample.token_ids[:end]
        log_p = self.bench.reference.distribution(weights, sample.prompt_token_ids, ids, temperature)
        sums = log_p.exp().cumsum(-1, dtype=torch.float64)
        tolerance = self.bench.settings.tolerance
        for number in range(start, end):
            drawn = uniform(bytes.fromhex(key), number) * float(sums[number, -1])
            distance = _distance(sums[number], ids[number], drawn)
            self.tokens += 1
            self.worst = max(self.worst, distance)
            self.missed += distance > NEAR
            if distance > tolerance * max(1.0, 1 / temperature) / 2:
                right = int(torch.searchsorted(sums[number], drawn, right=True))
                raise GuaranteeError(
                    f"token {number} is {ids[number]}, {distance:.4f} from the prescribed number",
                    f"{right}, whose interval holds it, by the key {key}",
                    where,
                )
        if self.tokens >= FEWEST and self.missed > (MISSED + tolerance) * self.tokens:
            raise GuaranteeError(
                f"{self.missed} of {self.tokens} tokens are more than {NEAR:g} from the prescribed number",
                "rounding alone moves a token, and rarely",
                where,
            )


def _distance(sums: torch.Tensor, token_id: int, drawn: float) -> float:
    """Returns the distance of a token's interval from a number. sums: [vocabulary] of probabilities."""
    below = float(sums[token_id - 1]) if token_id else 0.0
    return max(0.0, below - drawn, drawn - float(sums[token_id]))
