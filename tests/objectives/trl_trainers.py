"""TRL's trainer without a model. Importing TRL takes seconds, so the test does it that needs it."""

from collections import defaultdict

import torch
from accelerate import Accelerator
from trl import GRPOConfig, GRPOTrainer


class GivenScores(GRPOTrainer):
    """The loss of GRPO: scores [B, L] are given, all else is TRL's."""

    def __init__(self, **settings):
        self.args = GRPOConfig(use_cpu=True, bf16=False, report_to="none", **settings)
        self.model = torch.nn.Identity().train()
        self.accelerator = Accelerator(cpu=True)
        self.current_gradient_accumulation_steps = 1
        self._metrics = {"train": defaultdict(list)}
        # As in GRPOTrainer.__init__, which wants a model and a data set.
        self.loss_type = self.args.loss_type
        self.importance_sampling_level = self.args.importance_sampling_level
        self.epsilon_low = self.args.epsilon
        self.epsilon_high = self.args.epsilon if self.args.epsilon_high is None else self.args.epsilon_high
        self.beta = self.args.beta
        self.max_completion_length = self.args.max_completion_length
        self.entropy_coef = self.args.entropy_coef
        self.use_adaptive_entropy = self.args.use_adaptive_entropy
        self._entropy_bonus_enabled = self.entropy_coef != 0.0
        self.top_entropy_quantile = self.args.top_entropy_quantile
        self.off_policy_mask_threshold = self.args.off_policy_mask_threshold
        self.use_vllm = self.args.use_vllm
        self.aux_loss_enabled = False

    def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
        return *self.scores, None

    def loss(self, logprobs: torch.Tensor, entropy: torch.Tensor, inputs: dict) -> torch.Tensor:
        self.scores = logprobs, entropy
        return self._compute_loss(self.model, inputs)
