"""Makes up inputs for components: a group of rollouts, and a micro-batch with its scores.

They must be possible in a run: a component that fails on them would fail in the run.
"""

import numpy as np
import torch
from msgspec.structs import replace

from contracts.records import Completion, Rollout, TrainingSequence, VersionSpan, unsampled
from contracts.trainer import PackedBatch, TokenScores
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Problem
from pipelinerl.domains.demonstrations import Demonstrations
from pipelinerl.errors.part_faults import path_of

PROBLEM = Problem("0", [{"role": "user", "content": "1 + 1 ="}], data="2")
PROMPT = (5, 6, 7)  # token ids that nearly every vocabulary has
ROLLOUTS = 4  # in the micro-batch
STEP = 1  # trains on samples of version 0, with a lag of one version


class AnyName(dict[str, float]):
    """A dict that has every key, because a user's domain has its own names of metrics."""

    def __missing__(self, name: str) -> float:
        if name == "success":  # a field of the rollout, and no metric
            raise KeyError("success: it is rollout.success")
        return 0.0


def answers_of(config: RunConfig) -> int:
    """Returns the number of answers to each problem in a file, or 0 if servers sample them."""
    if config.credit == "completion":
        return 2
    return int(config.domain.target == path_of(Demonstrations))


def group_of(config: RunConfig, size: int, problem: Problem = PROBLEM, answers: int = 0) -> list[Rollout]:
    """Returns `size` rollouts of one problem, of which every second is right. `answers`: see `answers_of`."""
    names = getattr(config.advantage, "components", None) or {}
    return [_rollout(config, member, names, problem, answers) for member in range(size)]


def _rollout(config: RunConfig, member: int, names: object, problem: Problem, answers: int) -> Rollout:
    reward = float(member % 2 == 0)
    completions = [unsampled(PROMPT, [8 + turn, 9, 10]) for turn in range(answers)]
    completions = completions or [_sampled(config, member)]
    return Rollout(
        run="trial",
        rollout_id=f"0-{member}",
        group_id=0,
        problem_id=problem.problem_id,
        domain=problem.domain or "trial",
        draw=0,
        completions=completions,
        reward=reward,
        reward_components=AnyName(dict.fromkeys(names, reward)),
        turn_rewards=[1.0, -1.0][: len(completions)] if config.credit == "completion" else [],
        success=reward,
        metrics=AnyName(retries=0.0),
        started_at=1.0,
        finished_at=2.0,
    )


def _sampled(config: RunConfig, member: int) -> Completion:
    tokens = 3 + member % 3
    return Completion(
        prompt_token_ids=np.array(PROMPT, dtype=np.int32),
        token_ids=np.arange(8, 8 + tokens, dtype=np.int32),
        logprobs=np.linspace(-0.5, -1.5, tokens, dtype=np.float32),
        spans=[VersionSpan(0, 0, tokens)],
        temperature=config.sampling.temperature,
        finish_reason="stop",
        token_fields={
            name: np.ones(tokens, dtype=field.array_dtype) for name, field in config.token_fields.items()
        },
    )


def batch_of(config: RunConfig, answers: int) -> PackedBatch:
    """Returns a micro-batch with advantages of both signs, and with the token fields of `config`."""
    return _packed(config, group_of(config, ROLLOUTS, answers=answers))


def halves_of(config: RunConfig, answers: int, scores: TokenScores) -> list[tuple[PackedBatch, TokenScores]]:
    """Returns the micro-batch of `batch_of` in two halves, each with its part of the scores."""
    rollouts = group_of(config, ROLLOUTS, answers=answers)
    halves = [_packed(config, rollouts[: ROLLOUTS // 2]), _packed(config, rollouts[ROLLOUTS // 2 :])]
    given = [scores.logprobs, scores.entropy, *([] if scores.values is None else [scores.values])]
    split = [tensor.split([half.num_tokens for half in halves]) for tensor in given]
    return [
        (half, TokenScores(*(part * 1.0 for part in parts)))
        for half, *parts in zip(halves, *split, strict=True)
    ]


def _packed(config: RunConfig, rollouts: list[Rollout]) -> PackedBatch:
    sequences = [sequence for rollout in rollouts for sequence in _sequences(config, rollout)]
    return PackedBatch.pack(sequences, STEP, config.token_fields)


def _sequences(config: RunConfig, rollout: Rollout) -> list[TrainingSequence]:
    advantages = rollout.turn_rewards or [rollout.reward - 0.5] * len(rollout.completions)
    made = training_sequences(rollout, advantages, token_fields=config.token_fields)
    return [replace(s, loss_weight=1 / ROLLOUTS, reference_logprobs=_reference(config, s)) for s in made]


def _reference(config: RunConfig, sequence: TrainingSequence) -> np.ndarray | None:
    if config.reference is None:
        return None
    return np.linspace(-0.4, -1.4, len(sequence.token_ids), dtype=np.float32)


def scores_of(batch: PackedBatch, has_values: bool) -> tuple[TokenScores, list[torch.Tensor]]:
    """Returns scores near those of the servers, and the leaf tensors of their gradients."""
    # Differences up to 0.05, some of them small enough for the smallest trust region.
    near = batch.behaviour_logprobs + 0.05 * torch.linspace(-1, 1, batch.num_tokens) ** 3
    sampled = (batch.versions >= 0) & batch.loss_mask
    logprobs = torch.where(sampled, near, torch.linspace(-0.7, -1.2, batch.num_tokens))
    given = [logprobs, torch.linspace(0.5, 1.0, batch.num_tokens)]
    given += [torch.linspace(0.1, 0.6, batch.num_tokens)] if has_values else []
    sources = [tensor.clone().requires_grad_() for tensor in given]
    return TokenScores(*(source * 1.0 for source in sources)), sources
