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
    """Returns one sequence per chain of turns (`chains_of`).

    advantages: one number per completion.
    last_segments: True to exclude all but the last segment of each completion from the loss.
    token_fields: the declared fields; a completion that lacks one gets its fill value.
    """
    turns: list[Turn] = list(zip(rollout.completions, advantages, strict=True))
    chains = [[turns[number] for number in chain] for chain in chains_of(rollout.completions)]
    return [_merge(rollout, chain, last_segments, token_fields) for chain in chains]


def chains_of(completions: Sequence[Completion]) -> list[list[int]]:
    """Returns the chains of an attempt's turns, as numbers of completions, by their first turn.

    A turn joins the chain whose tokens its prompt extends, the longest one of several; else it begins one. So
    conversations that alternate in one attempt are chains of their own.
    """
    chains: list[list[int]] = []
    for number, completion in enumerate(completions):
        extended = [chain for chain in chains if _extends(completion, completions[chain[-1]])]
        if extended:
            max(extended, key=lambda chain: (_length(completions[chain[-1]]), chain[-1])).append(number)
        else:
            chains.append([number])
    return chains


def with_advantages(
    sequences: Sequence[TrainingSequence],
    advantages: np.ndarray,
    lengths: Sequence[int],
    chains: Sequence[Sequence[int]],
) -> list[TrainingSequence]:
    """Returns a rollout's sequences with other advantages [turns] of its turns.

    lengths: the number of sampled tokens of each turn. chains: the turns of each sequence (`chains_of`).
    """
    replaced = []
    for sequence, chain in zip(sequences, chains, strict=True):
        sampled = sequence.versions >= 0
        of_tokens = np.repeat(advantages[chain], [lengths[turn] for turn in chain])
        if len(of_tokens) != np.count_nonzero(sampled):
            raise ValueError("tokens that were not sampled cannot be given other advantages")
        of_sequence = np.zeros(len(sampled), np.float32)
        of_sequence[sampled] = of_tokens
        replaced.append(msgspec.structs.replace(sequence, advantages=of_sequence))
    return replaced


def _length(completion: Completion) -> int:
    return len(completion.prompt_token_ids) + len(completion.token_ids)


def _extends(completion: Completion, before: Completion) -> bool:
    """Returns True if the prompt starts with all tokens of an earlier turn, at the same temperature."""
    prompt = completion.prompt_token_ids
    start = len(before.prompt_token_ids)
    end = _length(before)
    return (
        0 < end <= len(prompt)
        and completion.temperature == before.temperature
        and np.array_equal(prompt[start:end], before.token_ids)
        and np.array_equal(prompt[:start], before.prompt_token_ids)
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
