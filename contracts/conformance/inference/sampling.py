"""The distributions from which a correct server samples: temperature, then `top_k`, then `top_p`.

G4 and G9 use it. Low temperatures multiply the errors of logits, so larger errors are allowed there.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """The sampling parameters of a request. Parameters that are None are not sent."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None

    @property
    def fields(self) -> dict[str, float]:
        """The parameters as fields of a request."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def divisor(self) -> float:
        """The divisor of the logits: 1 for greedy sampling and by default."""
        return self.temperature or 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def slack(self, tolerance: float) -> float:
        """Returns the allowed error of a scaled logit, in nats, given that of a logit."""
        return tolerance * max(1.0, 1 / self.divisor)

    def distribution(self, log_p: torch.Tensor) -> torch.Tensor:
        """Converts [tokens, vocabulary] log-probabilities at temperature 1 to those of this sampling."""
        log_p = (log_p.double() / self.divisor).log_softmax(-1)
        if self.greedy:
            return log_p
        if self.top_k and 0 < self.top_k < log_p.shape[-1]:
            least = log_p.topk(self.top_k, -1).values[:, -1:]
            log_p = log_p.masked_fill(log_p < least, -torch.inf).log_softmax(-1)
        if self.top_p and self.top_p < 1:
            ordered, order = log_p.sort(-1, descending=True)
            likelier = ordered.exp().cumsum(-1) - ordered.exp()
            kept = ordered.masked_fill(likelier >= self.top_p, -torch.inf)
            log_p = torch.empty_like(log_p).scatter(-1, order, kept).log_softmax(-1)
        return log_p

    def certain(self, log_p: torch.Tensor, tolerance: float) -> torch.Tensor:
        """Returns [tokens] booleans: True if truncation is the same for all logits within the tolerance."""
        slack = self.slack(tolerance)
        scaled = (log_p.double() / self.divisor).log_softmax(-1)
        sure = torch.ones(len(log_p), dtype=torch.bool)
        if self.greedy:
            return sure
        if self.top_k and 0 < self.top_k < log_p.shape[-1]:
            last, next_one = scaled.topk(self.top_k + 1, -1).values[:, -2:].unbind(-1)
            sure &= last - next_one > 2 * slack
            least = scaled.topk(self.top_k, -1).values[:, -1:]
            scaled = scaled.masked_fill(scaled < least, -torch.inf).log_softmax(-1)
        if self.top_p and self.top_p < 1:
            ordered = scaled.sort(-1, descending=True).values
            mass = ordered.exp().cumsum(-1)
            sure &= (mass[:, :-1] - self.top_p).abs().amin(-1) > min(2 * slack, 0.5)
            # Two tokens at the threshold may be exchanged.
            kept = (mass - ordered.exp() < self.top_p).sum(-1, keepdim=True)
            following = kept.clamp(max=ordered.shape[-1] - 1)
            apart = ordered.gather(-1, kept - 1) - ordered.gather(-1, following)
            sure &= (apart[:, 0] > 2 * slack) | (kept[:, 0] == ordered.shape[-1])
        return sure

    def bounds(
        self, log_p: torch.Tensor, ids: torch.Tensor, tolerance: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the smallest and the largest allowed log-probabilities of `ids`, each [tokens]."""
        given = self.distribution(log_p).gather(1, ids[:, None])[:, 0]
        others = torch.log(-torch.expm1(given.clamp(max=-1e-300)))
        shift = 2 * max(0.0, self.slack(tolerance) - tolerance)
        lowest = given - torch.logaddexp(given, others + shift) - tolerance
        highest = given - torch.logaddexp(given, others - shift) + tolerance
        return lowest, highest
