"""TRL's trainers without a model. Importing TRL takes seconds, so the fixture `trl_trainers` does it."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer


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

    def metric(self, name: str) -> float:
        return self._metrics["train"][name][-1]


class GivenRewards(GRPOTrainer):
    """The advantages of GRPO: completions of one token, and given rewards [N, K]."""

    def __init__(self, weights: dict[str, float], group_size: int, **settings):
        self.args = GRPOConfig(
            use_cpu=True, bf16=False, report_to="none", num_generations=group_size, **settings
        )
        self.model = torch.nn.Identity().train()
        self.model.is_gradient_checkpointing = False
        self.accelerator = Accelerator(cpu=True)
        self._metrics = {"train": defaultdict(list)}
        self._logs = defaultdict(list, rewards=defaultdict(list))
        self._pending_extra_logs = {}
        self._pending_metrics = {}
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        # As in GRPOTrainer.__init__, which wants a model and a data set.
        self.environment_factories = self.environments = self.tools = self.pad_to_multiple_of = None
        self.mask_truncated_completions = self.use_vllm = False
        self.beta = self.args.beta
        self.num_iterations = self.args.num_iterations
        self.num_generations = group_size
        self.scale_rewards = self.args.scale_rewards
        self.multi_objective_aggregation = self.args.multi_objective_aggregation
        self.reward_weights = torch.tensor([*weights.values()], dtype=torch.float64)
        self.reward_funcs = self.reward_func_names = [*weights]

    def _generate(self, prompts):
        answers = [[1]] * len(prompts)
        return answers, answers, None, ["a"] * len(prompts), None, {}, None, None

    def _calculate_rewards(self, *args):
        return self.rewards

    def advantages(self, rewards: np.ndarray) -> np.ndarray:
        self.rewards = torch.from_numpy(rewards)
        return self._generate_and_score_completions([{"prompt": "a"}] * len(rewards))["advantages"].numpy()


class GivenPreferences(DPOTrainer):
    """TRL's trainer with models that are tables of log-probabilities [2 pairs, L]."""

    def __init__(self, reference: torch.Tensor, **settings):
        self.args = DPOConfig(use_cpu=True, bf16=False, report_to="none", **settings)
        self.model = torch.nn.Identity().train()
        self.model.is_gradient_checkpointing = False
        self.ref_model = lambda **_: self.said(reference)
        self.accelerator = Accelerator(cpu=True)
        self._metrics = {"train": defaultdict(list)}
        self._total_train_tokens = 0
        self._tp_size = 1
        # As in DPOTrainer.__init__, which wants a model and a data set.
        self.beta = self.args.beta
        self.loss_types = self.args.loss_type
        self.loss_weights = [1.0]
        self.f_divergence_type = self.args.f_divergence_type
        self.ld_alpha = self.args.ld_alpha
        self.use_weighting = self.args.use_weighting
        self.precompute_ref_logps = False
        self.aux_loss_enabled = False

    @staticmethod
    def said(logprobs: torch.Tensor) -> SimpleNamespace:
        nothing = torch.zeros_like(logprobs)
        return SimpleNamespace(
            log_probs=logprobs,
            entropy=nothing,
            entropies=nothing,
            mean_logits=nothing,
            is_top1=nothing.bool(),
            aux_loss=None,
        )
