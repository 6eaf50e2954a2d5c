"""J = Σ w · c · 2^(−lag/h) · sg(min(r, ρ)) · A · log π: a token counts by its confidence c and by its age."""

from dataclasses import dataclass

from pipelinerl.objectives.base import log_ratio, ratio


@dataclass(frozen=True)
class Weighed:
    half_life: float = 4.0  # h, in steps
    max_importance_weight: float = 5.0  # ρ

    needs_token_fields = ("confidence",)

    def __call__(self, scores, batch):
        confidence = batch.token_fields["confidence"]  # [T] float32, 0 where not sampled
        lag = (batch.step - batch.versions).where(batch.loss_mask, 0)  # [T]
        r = ratio(log_ratio(scores, batch)).detach().clamp(max=self.max_importance_weight)
        weight = confidence * 0.5 ** (lag / self.half_life) * r
        loss = -(weight * batch.advantages * scores.logprobs * batch.loss_weights).sum()
        return loss, {"confidence": confidence.where(batch.loss_mask, 0.0).sum()}
