"""Statistics of a step's tokens: importance weights, lag, entropy, the objective's sums.

Notation: r = π/μ of a token that a server sampled, not truncated.
"""

from collections.abc import Collection, Iterable

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import TokenSums, log_ratio, sampled
from pipelinerl.training.ranks import Ranks

LAG_BUCKETS = 9  # the gap is reported for each lag from 0 to 7, and for all lags from 8 on


TIMED = (  # spans in a step's metrics
    "wait", "learn", "optimizer", "quiesce", "sleep", "onload", "offload", "publish", "probe", "save",
)  # fmt: skip
REPORTED = {  # by every step, so that neither an objective nor a trainer may use these names
    "time", "step", "step_s", *(f"{name}_s" for name in TIMED),
    "trained_tokens", "loss", "ess", "ratio_mean_abs_log", "ratio_max_abs_log", "mismatch_k3", "entropy",
    "grad_norm", "learning_rate", "skipped", "lag_mean", "lag_max", "masked_tokens", "trained_tokens_per_s",
}  # fmt: skip


class StepStatistics:
    """Sums over the micro-batches of one rank's step; `report` reduces them over ranks.

    The sums stay on the batches' device until then, so that no micro-batch waits for the previous one.
    """

    def __init__(self):
        self._sums: dict[str, torch.Tensor] = {}  # scalars, float64
        self._largest: list[torch.Tensor] = []  # largest |log r| of each micro-batch
        self._by_lag: torch.Tensor | float = 0.0  # [2, LAG_BUCKETS]: Σ|log r|, tokens

    def update(self, scores: TokenScores, batch: PackedBatch, loss: torch.Tensor, sums: TokenSums) -> None:
        """Adds one micro-batch. Raises ValueError if the objective's sums use a reserved name."""
        check_names("objective's sums", sums, REPORTED)
        mask = batch.loss_mask
        has_ratio = sampled(batch)
        log_r = log_ratio(scores, batch).detach().double()  # [T]; float32 cannot hold r² of an outlier
        r = log_r.exp().where(has_ratio, 0.0)
        gap = log_r.abs()
        values = {
            "tokens": mask.sum(),
            "sampled": has_ratio.sum(),
            "loss": loss.detach(),
            "r": r.sum(),
            "r_squared": r.square().sum(),
            "abs_log_r": gap.sum(),
            "k3": (r - has_ratio.double() - log_r).sum(),
            "entropy": scores.entropy.detach().where(mask, 0.0).sum(),
            **{f"objective_{name}": value.detach() for name, value in sums.items()},
        }
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value.to(gap)
        if batch.num_tokens:
            self._largest.append(gap.max())
        lag = (batch.step - batch.versions).clamp(0, LAG_BUCKETS - 1)
        both = torch.stack([gap, has_ratio.double()])  # [2, T]
        self._by_lag = self._by_lag + both.new_zeros(2, LAG_BUCKETS).index_add_(1, lag, both)

    def report(self, ranks: Ranks) -> dict[str, float]:
        """Returns the step's metrics over all ranks. Every rank must call it."""
        names = sorted(self._sums)
        flat = torch.cat([torch.stack([self._sums[name] for name in names]), self._by_lag.flatten()])
        totals = ranks.total(flat)
        sums = dict(zip(names, totals[: len(names)].tolist(), strict=True))
        gaps, counts = totals[len(names) :].view(2, LAG_BUCKETS).tolist()
        nothing = torch.zeros(1, dtype=torch.float64)
        largest = torch.stack(self._largest).max() if self._largest else nothing
        max_abs_log_ratio = float(ranks.maximum(largest.view(1)))
        tokens = max(sums["tokens"], 1.0)
        return {
            "trained_tokens": sums["tokens"],
            "loss": sums["loss"],
            **_ratios(sums, max_abs_log_ratio),
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


def check_names(of: str, names: Iterable[str], taken: Collection[str]) -> None:
    """Raises ValueError if a metric of a component has a name that is taken."""
    if both := ", ".join(name for name in names if name in taken):
        raise ValueError(f"the {of} cannot be named {both}: every step reports those")


def _ratios(sums: dict[str, float], max_abs_log_ratio: float) -> dict[str, float]:
    """Returns the statistics of r; none if no server has sampled the step's tokens."""
    sampled_tokens = sums["sampled"]
    if not sampled_tokens:
        return {}
    return {
        "ess": sums["r"] ** 2 / max(sampled_tokens * sums["r_squared"], 1e-30),
        "ratio_mean_abs_log": sums["abs_log_r"] / sampled_tokens,
        "ratio_max_abs_log": max_abs_log_ratio,
        "mismatch_k3": sums["k3"] / sampled_tokens,
    }
