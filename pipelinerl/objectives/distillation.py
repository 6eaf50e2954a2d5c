"""On-policy distillation: moves π towards a teacher on samples of the policy.

    the inner objective, with  A = α · A_reward + β · sg(log teacher − log π)  for each token

With `reinforce` inside and α = 0, J has in expectation the gradient of −β · KL(π‖teacher), token by token.
Then no reward is needed, and groups of equal rewards have a gradient too (`filters=[]`). With α = 1 the
policy learns from rewards and from the teacher. The teacher is the model of the `reference` server
(`+reference.arguments.model=DIRECTORY`), which must have the same vocabulary. The log ratio is clipped to 20
nats.
Source: GKD, arXiv 2306.13649; Thinking Machines Lab, "On-Policy Distillation" (2025).
"""

import math
from dataclasses import dataclass, replace

import torch

from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.objectives.base import MAX_LOG_RATIO, Objective, TokenSums, reference_logprobs


@dataclass(frozen=True)
class Distillation:
    whole_rollouts = False
    needs_reference = True

    policy: Objective
    reward_weight: float  # α
    teacher_weight: float  # β

    def __post_init__(self):
        if not callable(self.policy):
            raise ValueError("policy must be an objective, with its own _target_")
        if getattr(self.policy, "learned_baseline", False):
            raise ValueError("a teacher's advantages need no learned baseline: take another policy")
        if getattr(self.policy, "advantage_of_rollout", False):
            name = type(self.policy).__name__
            raise ValueError(
                f"{name} takes the mean of a rollout's advantages, and a teacher gives each token one"
            )
        if not 0 <= self.reward_weight < math.inf:
            raise ValueError(f"reward_weight must not be negative, and is {self.reward_weight}")
        if not 0 < self.teacher_weight < math.inf:
            raise ValueError(f"teacher_weight must be positive, not {self.teacher_weight}")

    @property
    def needs_teacher(self) -> bool:
        return self.reward_weight == 0

    @property
    def needs_no_advantage(self) -> bool:
        return self.reward_weight == 0

    def __call__(self, scores: TokenScores, batch: PackedBatch) -> tuple[torch.Tensor, TokenSums]:
        teacher = reference_logprobs(scores, batch)
        gap = (teacher - scores.logprobs.detach()).where(batch.loss_mask, 0.0)
        gap = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        advantages = self.reward_weight * batch.advantages + self.teacher_weight * gap
        loss, sums = self.policy(scores, replace(batch, advantages=advantages))
        return loss, {**sums, "teacher_gap": -gap.sum()}
