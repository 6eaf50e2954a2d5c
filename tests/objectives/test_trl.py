"""Against TRL's own loss, value and gradient, on the same tensors.

`GRPOTrainer._compute_loss` runs as it is; only what the model says of the tokens is given to it. TRL knows
rollouts of one sequence, a row each. What it calls a completion is all from the first sampled token on; its
`tool_mask` takes out what lies between turns, and what else is not in our loss.
"""

from typing import NamedTuple

import pytest
import torch

from contracts.trainer import PackedBatch
from pipelinerl.normalisations import (
    Normalisation,
    PerRolloutToken,
    PerSequence,
    PerStepToken,
    PerTokenLimit,
)
from pipelinerl.objectives.base import Objective
from pipelinerl.objectives.cispo import Cispo
from pipelinerl.objectives.entropy import EntropyBonus
from pipelinerl.objectives.gspo import Gspo
from pipelinerl.objectives.kl import KlToReference
from pipelinerl.objectives.masked import Masked
from pipelinerl.objectives.ppo_clip import PpoClip
from pipelinerl.objectives.rules import OffPolicySequence
from pipelinerl.objectives.two_sided_clip import TwoSidedClip
from tests.objectives.batches import Step, leaf_scores, packed, random_step

LIMIT = 40  # TRL's max_completion_length


class Rows:
    """Where the tokens of a batch stand in TRL's rows [B, L], padded on the right."""

    def __init__(self, batch: PackedBatch):
        starts = batch.cu_seqlens.tolist()
        sampled = batch.versions >= 0
        completions = [
            torch.arange(start + int(sampled[start:end].int().argmax()), end)
            for start, end in zip(starts, starts[1:], strict=False)
        ]
        pad = torch.nn.utils.rnn.pad_sequence
        self.index = pad(completions, batch_first=True)  # [B, L] into the batch; 0 where padded
        self.completion_mask = pad([torch.ones_like(c) for c in completions], batch_first=True)
        self.loss_mask = batch.loss_mask.long()[self.index]

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """[T] -> [B, L]"""
        return values[self.index]

    def inputs(self, batch: PackedBatch, advantages: torch.Tensor) -> dict:
        return {
            "prompt_ids": torch.zeros(len(self.index), 1, dtype=torch.int64),
            "prompt_mask": torch.ones(len(self.index), 1, dtype=torch.int64),
            "completion_ids": batch.token_ids[self.index],
            "completion_mask": self.completion_mask,
            "tool_mask": self.loss_mask,
            "advantages": advantages,
            "old_per_token_logps": self.of(batch.behaviour_logprobs),
            "ref_per_token_logps": self.of(batch.reference_logprobs),
            "num_items_in_batch": (self.completion_mask * self.loss_mask).sum(),
        }


class Mapping(NamedTuple):
    """TRL's settings, and what they are here: a sum of objectives under one normalisation."""

    trl: dict
    objectives: list[Objective]
    normalisation: Normalisation
    level: str = "token"
    by_turn: bool = True  # whether tokens of a row may have several advantages


BOUNDS = {"epsilon": 0.2, "epsilon_high": 0.28, "max_completion_length": LIMIT}
KL = {"beta": 0.04, "use_bias_correction_kl": False}  # TRL's own default multiplies each k3 by its r
K3 = KlToReference(0.04, unbiased=False)
PPO = PpoClip(0.2, 0.28)
TWO_SIDED = TwoSidedClip(0.2, 0.28, 4.0)

MAPPINGS = {
    # mean over a row's tokens, then over rows
    "grpo": Mapping({"loss_type": "grpo"}, [PPO], PerRolloutToken()),
    # sum over `num_items_in_batch`, the tokens of the whole generation batch: here those of the step
    "dapo": Mapping({"loss_type": "dapo"}, [PPO], PerStepToken()),
    # sum over the tokens of the local batch: the same, where that is the whole step
    "bnpo": Mapping({"loss_type": "bnpo"}, [PPO], PerStepToken()),
    # sum over rows times max_completion_length
    "dr_grpo": Mapping({"loss_type": "dr_grpo"}, [PPO], PerTokenLimit(LIMIT)),
    # sum over rows' tokens, mean over rows: 1/B a token
    "luspo": Mapping({"loss_type": "luspo"}, [PPO], PerSequence()),
    # delta caps the ratio before the minimum is taken; for A > 0 the clip is below it in any case
    "grpo_delta": Mapping({"loss_type": "grpo", "delta": 4.0}, [TWO_SIDED], PerRolloutToken()),
    "dapo_delta": Mapping({"loss_type": "dapo", "delta": 4.0}, [TWO_SIDED], PerStepToken()),
    "dr_grpo_delta": Mapping({"loss_type": "dr_grpo", "delta": 4.0}, [TWO_SIDED], PerTokenLimit(LIMIT)),
    # epsilon_high is the cap itself, 1 + ε_high here; no lower bound; normalised as dapo
    "cispo": Mapping({"loss_type": "cispo", "epsilon_high": 5.0}, [Cispo(1.0, 4.0)], PerStepToken()),
    # one term a row, spread over its tokens; grpo's mean over them gives it back: 1/B a rollout
    "gspo": Mapping({"loss_type": "grpo"}, [Gspo(0.2, 0.28)], PerSequence(), level="sequence"),
    "gspo_narrow": Mapping(
        {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4},
        [Gspo(3e-4, 4e-4)],
        PerSequence(),
        level="sequence",
    ),
    # k3 to the reference is added per token, and normalised with the policy's loss
    "grpo_kl": Mapping({"loss_type": "grpo", **KL}, [PPO, K3], PerRolloutToken()),
    "dapo_kl": Mapping({"loss_type": "dapo", **KL}, [PPO, K3], PerStepToken()),
    "dr_grpo_kl": Mapping({"loss_type": "dr_grpo", **KL}, [PPO, K3], PerTokenLimit(LIMIT)),
    # each k3 times its ratio
    "dapo_kl_unbiased": Mapping(
        {"loss_type": "dapo", "beta": 0.04, "use_bias_correction_kl": True},
        [PPO, KlToReference(0.04)],
        PerStepToken(),
    ),
    # DeepSeek-V3.2's mask, whose sequences are rows
    "dapo_off_policy": Mapping(
        {"loss_type": "dapo", "off_policy_mask_threshold": 0.1},
        [Masked(PPO, [OffPolicySequence(0.1)], "behaviour")],
        PerStepToken(),
        by_turn=False,  # here A is the rollout's mean, in TRL the token's
    ),
    "gspo_off_policy": Mapping(
        {"loss_type": "grpo", "off_policy_mask_threshold": 0.1},
        [Masked(Gspo(0.2, 0.28), [OffPolicySequence(0.1)], "behaviour")],
        PerSequence(),
        level="sequence",
    ),
    # the bonus is the mean entropy over tokens, whatever the loss type
    "dapo_entropy": Mapping(
        {"loss_type": "dapo", "entropy_coef": 0.01}, [PPO, EntropyBonus(0.01)], PerStepToken()
    ),
    # as in INTELLECT-2, δ and KL together
    "dapo_delta_kl": Mapping(
        {"loss_type": "dapo", "delta": 4.0, **KL},
        [TWO_SIDED, K3],
        PerStepToken(),
    ),
}


def step_of(mapping: Mapping, seed: int) -> Step:
    return random_step(
        seed,
        mapping.normalisation,
        most_sequences=1,
        advantage_by_turn=mapping.by_turn and mapping.level == "token",  # a row of a sequence level has one
        failures=False,
    )


@pytest.mark.parametrize("name", MAPPINGS)
def test_value_and_gradient_are_those_of_trl(name, trl_trainers, tmp_path):
    mapping = MAPPINGS[name]
    settings = {"output_dir": str(tmp_path), "importance_sampling_level": mapping.level}
    trainer = trl_trainers.GivenScores(**(BOUNDS | settings | mapping.trl))
    for seed in range(8):
        step = step_of(mapping, seed)
        batch = packed(step.sequences)
        rows = Rows(batch)
        scores = leaf_scores(batch, step.tables)
        advantages = rows.of(batch.advantages)
        if mapping.level == "sequence":
            advantages = advantages[:, 0]
        theirs = trainer.loss(
            rows.of(scores.logprobs), rows.of(scores.entropy), rows.inputs(batch, advantages)
        )
        results = [objective(scores, batch) for objective in mapping.objectives]
        ours = sum(loss for loss, _ in results)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
        leaves = [scores.logprobs, scores.entropy]
        kwargs = {"allow_unused": True, "materialize_grads": True}
        for mine, other in zip(
            torch.autograd.grad(ours, leaves, **kwargs),
            torch.autograd.grad(theirs, leaves, **kwargs),
            strict=True,
        ):
            torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "luspo"])
def test_as_many_tokens_are_clipped_as_in_trl(loss_type, trl_trainers, tmp_path):
    trainer = trl_trainers.GivenScores(output_dir=str(tmp_path), loss_type=loss_type, **BOUNDS)
    for seed in range(4):
        step = step_of(MAPPINGS[loss_type], seed)
        batch = packed(step.sequences)
        rows = Rows(batch)
        scores = leaf_scores(batch, step.tables)
        inputs = rows.inputs(batch, rows.of(batch.advantages))
        trainer.loss(rows.of(scores.logprobs), rows.of(scores.entropy), inputs)
        _, sums = PPO(scores, batch)
        share = sums["clip_fraction"].item() / batch.loss_mask.sum().item()
        assert share == pytest.approx(trainer.metric("clip_ratio/region_mean"), rel=1e-5)
        assert share > 0


def test_the_cut_of_a_dapo_step_is_that_of_trl(trl_trainers, tmp_path):
    """TRL's normaliser spans the generation batch: its micro-batches add up to the whole step too."""
    mapping = MAPPINGS["dapo"]
    trainer = trl_trainers.GivenScores(
        output_dir=str(tmp_path),
        loss_type="dapo",
        gradient_accumulation_steps=4,
        steps_per_generation=4,
        num_generations=4,
        **BOUNDS,
    )
    trainer.current_gradient_accumulation_steps = 4
    step = step_of(mapping, seed=0)
    whole = packed(step.sequences)
    tokens = whole.loss_mask.sum()
    for part in range(4):
        batch = packed(step.sequences[4 * part : 4 * part + 4])
        rows = Rows(batch)
        scores = leaf_scores(batch, step.tables)
        inputs = rows.inputs(batch, rows.of(batch.advantages)) | {"num_items_in_batch": tokens}
        theirs = trainer.loss(rows.of(scores.logprobs), rows.of(scores.entropy), inputs)
        ours, _ = PPO(scores, batch)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
        (mine,) = torch.autograd.grad(ours, [scores.logprobs])
        (other,) = torch.autograd.grad(theirs, [scores.logprobs])
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-14)
