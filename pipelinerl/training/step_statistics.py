"""What a step reports of its tokens: importance weights, lag, entropy, the objective's own sums.

Notation: r = π/μ per token, untruncated; N the unmasked tokens of the step over all ranks.
"""

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, log_ratio
from pipelinerl.training.ranks import Ranks

LAG_BUCKETS = 9  # the gap is reported for lag 0 .. 7, and 8 or more together


REPORTED = {
    "time", "step",
    "trained_tokens", "loss", "ess", "ratio_mean_abs_log", "ratio_max_abs_log", "mismatch_k3", "entropy",
    "grad_norm", "learning_rate", "lag_mean", "lag_max", "masked_tokens", "trained_tokens_per_s",
}  # fmt: skip


class StepStatistics:
    """Sums over the micro-batches of one rank's step; `report` adds the ranks up."""

    def __init__(self):
        self._sums: dict[str, torch.Tensor] = {}
        self._max_abs_log_ratio = torch.zeros((), dtype=torch.float64)
        self._gap_by_lag = torch.zeros(2, LAG_BUCKETS, dtype=torch.float64)  # Σ|log r|, tokens

    def update(self, scores: TokenScores, batch: PackedBatch, loss: torch.Tensor, sums: TokenSums) -> None:
        """Adds one micro-batch. Raises ValueError if the objective's sums use a reserved name."""
        if taken := sums.keys() & REPORTED:
            raise ValueError(
                f"the objective's sums cannot be named {', '.join(taken)}: every step reports those"
            )
        mask = batch.loss_mask
        log_r = log_ratio(scores, batch).detach()[mask].double()  # [N]; float32 cannot hold r² of an outlier
        r = log_r.exp()
        values = {
            "tokens": mask.sum(),
            "loss": loss.detach(),
            "r": r.sum(),
            "r_squared": r.square().sum(),
            "abs_log_r": log_r.abs().sum(),
            "k3": (r - 1 - log_r).sum(),
            "entropy": scores.entropy.detach()[mask].sum(),
            **{f"objective_{name}": value.detach() for name, value in sums.items()},
        }
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value.double().cpu()
        if len(log_r):
            self._max_abs_log_ratio = torch.maximum(self._max_abs_log_ratio, log_r.abs().max().cpu())
            lag = (batch.step - batch.versions[mask]).clamp(0, LAG_BUCKETS - 1).cpu()
            self._gap_by_lag[0].index_add_(0, lag, log_r.abs().cpu())
            self._gap_by_lag[1].index_add_(0, lag, torch.ones(len(lag), dtype=torch.float64))

    def report(self, ranks: Ranks) -> dict[str, float]:
        """Metrics of the step over all ranks; every rank calls it."""
        names = sorted(self._sums)
        totals = ranks.total(torch.stack([self._sums[name] for name in names]))
        sums = dict(zip(names, totals.tolist(), strict=True))
        max_abs_log_ratio = float(ranks.maximum(self._max_abs_log_ratio))
        gaps, counts = ranks.total(self._gap_by_lag).tolist()
        tokens = max(sums["tokens"], 1.0)
        return {
            "trained_tokens": sums["tokens"],
            "loss": sums["loss"],
            "ess": sums["r"] ** 2 / max(tokens * sums["r_squared"], 1e-30),
            "ratio_mean_abs_log": sums["abs_log_r"] / tokens,
            "ratio_max_abs_log": max_abs_log_ratio,
            "mismatch_k3": sums["k3"] / tokens,
            "entropy": sums["entropy"] / tokens,
            **{
                n.removeprefix("objective_"): v / tokens
                for n, v in sums.items()
                if n.startswith("objective_")
            },
            **{
                f"logprob_gap_at_lag_{lag}": g / c
                for lag, (g, c) in enumerate(zip(gaps, counts, strict=True))
                if c
            },
        }
