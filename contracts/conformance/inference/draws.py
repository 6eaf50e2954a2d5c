"""Decides whether tokens were drawn from the expected distributions.

Each token is mapped to a number that is uniform in [0, 1] if it was drawn correctly. The number is the
probability of all tokens ordered before it, plus a random share of its own. So tokens of different
distributions can be tested together.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

LEVELS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
FALSE_ALARM = 1e-10  # probability per comparison; a run of the kit makes at most a few hundred
LARGEST_SLACK = 0.25  # largest relative error of a probability that allows a verdict


@dataclass
class Draws:
    """Drawn tokens, grouped by a common property such as their temperature."""

    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    by_rank: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    by_id: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    slack: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, log_p: torch.Tensor, ids: Sequence[int], slack: float) -> None:
        """Adds [tokens] ids drawn from [tokens, vocabulary] log-probabilities.

        slack: allowed relative error of a probability.
        """
        if slack > LARGEST_SLACK or not len(ids):
            return
        by_rank, by_id = uniform(log_p, ids, self.generator)
        self.by_rank[name] += by_rank.tolist()
        self.by_id[name] += by_id.tolist()
        self.slack[name] = max(self.slack[name], slack)

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))

    def unlikely(self) -> str | None:
        """Returns a description of draws that are too unlikely, or None."""
        for order, drawn in (("likeliest first", self.by_rank), ("in the order of ids", self.by_id)):
            for name, numbers in drawn.items():
                for level in LEVELS:
                    count = sum(number <= level for number in numbers)
                    off = self.slack[name] * level * (1 - level) * 2
                    unlikely = chance(count, len(numbers), max(0.0, level - off), min(1.0, level + off))
                    if unlikely < FALSE_ALARM:
                        return (
                            f"{name}: {count} of {len(numbers)} tokens lie in the first {level:.0%} of their "
                            f"distributions, {order}"
                        )
        return None


def uniform(
    log_p: torch.Tensor, ids: Sequence[int], generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the [tokens] numbers of the ids, ordered by likelihood and ordered by id."""
    chosen = torch.tensor(ids)[:, None]
    p = log_p.double().exp()
    own = p.gather(1, chosen)[:, 0]
    likelier = (p * (p > own[:, None])).sum(-1)
    before = p.cumsum(-1).gather(1, chosen)[:, 0] - own
    part = own * torch.rand(len(own), generator=generator, dtype=torch.float64)
    return likelier + part, before + part


def chance(count: int, n: int, least: float, most: float) -> float:
    """Returns the probability of such an extreme count in `n` draws with probability `least` to `most`."""
    if count < n * least:
        return _at_most(count, n, least)
    if count > n * most:
        return _at_most(n - count, n, 1 - most)
    return 1.0


def _at_most(count: int, n: int, p: float) -> float:
    """Returns the probability of at most `count` successes in `n` draws with probability `p`."""
    if p >= 1:
        return float(count >= n)
    if p <= 0:
        return 1.0
    terms = [
        math.lgamma(n + 1)
        - math.lgamma(k + 1)
        - math.lgamma(n - k + 1)
        + k * math.log(p)
        + (n - k) * math.log1p(-p)
        for k in range(count + 1)
    ]
    largest = max(terms)
    return math.exp(largest) * sum(math.exp(term - largest) for term in terms)
