"""Converts rollouts to training sequences of exactly the sampled tokens, never re-tokenised."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from contracts.records import Array, Completion, ReferencePrompt, Rollout, TrainingSequence
from contracts.token_fields import TokenField

Turn = tuple[Completion, float]  # a completion and its advantage


def training_sequences(
    rollout: Rollout,
    advantages: Sequence[float],
    last_segments: bool = False,
    token_fields: Mapping[str, TokenField] = {},
) -> list[TrainingSequence]:
    """Returns one sequence per chain of turns. A turn joins a chain if its prompt extends the chain's tokens.

    advantages: one number per completion.
    last_segments: True to exclude all but the last segment of each completion from the loss.
    token_fields: the declared fields; a completion that lacks one gets its fill value.
    """
    chains: list[list[Turn]] = []
    before: Completion | None = None
    for turn in zip(rollout.completions, advantages, strict=True):
        completion, _ = turn
        if before is not None and _extends(completion.prompt_token_ids, before):
            chains[-1].append(turn)
        else:
            chains.append([turn])
        before = completion
    return [_merge(rollout, chain, last_segments, token_fields) for chain in chains]


def with_advantages(
    sequences: Sequence[TrainingSequence], advantages: np.ndarray, lengths: Sequence[int]
) -> list[TrainingSequence]:
    """Returns a rollout's sequences with other advantages [turns] of its turns.

    lengths: the number of sampled tokens of each turn.
    """
    of_tokens = np.repeat(advantages, lengths)
    replaced = []
    for sequence in sequences:
        sampled = sequence.versions >= 0
        of_sequence = np.zeros(len(sampled), np.float32)
        of_sequence[sampled], of_tokens = np.split(of_tokens, [np.count_nonzero(sampled)])
        replaced.append(msgspec.structs.replace(sequence, advantages=of_sequence))
    if len(of_tokens):
        raise ValueError(f"{len(of_tokens)} tokens that were not sampled cannot be given other advantages")
    return replaced


def _extends(prompt: Array, before: Completion) -> bool:
    """Returns True if the prompt starts with all tokens of the previous turn, which has sampled some."""
    prompt_before = before.prompt_token_ids
    start = len(prompt_before)
    end = start + len(before.token_ids)
    return (
        end > 0
        and np.array_equal(prompt[start:end], before.token_ids)
        and np.array_equal(prompt[:start], prompt_before)
    )


def _merge(
    rollout: Rollout, chain: list[Turn], last_segments: bool, token_fields: Mapping[str, TokenField]
) -> TrainingSequence:
    """Returns the sequence of a chain. Tokens that no turn sampled have the fill value of each array."""
    last, _ = chain[-1]
    prompt_length = len(last.prompt_token_ids)
    length = prompt_length + len(last.token_ids)
    token_ids = np.empty(length, np.int32)
    token_ids[:prompt_length] = last.prompt_token_ids
    token_ids[prompt_length:] = last.token_ids
    loss_mask = np.zeros(length, bool)
    logprobs = np.zeros(length, np.float32)
    advantages = np.zeros(length, np.float32)
    versions = np.empty(length, np.int32)
    versions.fill(-1)
    reference_prompts = []
    for completion, advantage in chain:
        start = len(completion.prompt_token_ids)
        end = start + len(completion.token_ids)
        loss_mask[start + _first_in_loss(completion, last_segments) : end] = True
        if completion.spans:
            logprobs[start:end] = completion.logprobs
        advantages[start:end] = advantage
        of_completion = versions[start:end]
        for span in completion.spans:
            of_completion[span.start : span.end] = span.version
        if completion.reference_prompt is not None:
            reference_prompts.append(ReferencePrompt(start, end, completion.reference_prompt))
    return TrainingSequence(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        loss_weight=0.0,  # the normalisation sets it when the step is packed
        temperature=last.temperature,
        token_ids=token_ids,
        loss_mask=loss_mask,
        behaviour_logprobs=logprobs,
        versions=versions,
        advantages=advantages,
        reference_prompts=reference_prompts,
        token_fields={name: _merge_field(name, field, chain, length) for name, field in token_fields.items()},
    )


def _first_in_loss(completion: Completion, last_segments: bool) -> int:
    return completion.segments[-1] if last_segments and completion.segments else 0


def _merge_field(name: str, field: TokenField, chain: list[Turn], length: int) -> Array:
    merged = np.full(length, field.fill, field.array_dtype)
    for completion, _ in chain:
        start = len(completion.prompt_token_ids)
        merged[start : start + len(completion.token_ids)] = completion.token_fields.get(name, field.fill)
    return merged
