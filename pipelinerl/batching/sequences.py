"""Rollouts -> training sequences: token for token what the servers sampled, never re-tokenised."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike

from contracts.records import Array, Completion, Rollout, TrainingSequence
from contracts.token_fields import TokenField

Turn = tuple[Completion, float]  # and its advantage


def training_sequences(
    rollout: Rollout,
    advantages: Sequence[float],
    last_segments: bool = False,
    token_fields: Mapping[str, TokenField] = {},
) -> list[TrainingSequence]:
    """One sequence per chain of turns: a turn whose prompt extends the tokens so far exactly is
    merged into their sequence; otherwise a new sequence begins. `advantages`: one a completion.
    `last_segments`: leave all but the last segment of each completion out of the loss.
    `token_fields`: the declared ones; a completion without one has its fill."""
    chains: list[list[Turn]] = []
    tokens_so_far = np.empty(0, dtype=np.int32)
    for turn in zip(rollout.completions, advantages, strict=True):
        completion, _ = turn
        prompt = completion.prompt_token_ids
        extends = len(tokens_so_far) and np.array_equal(prompt[: len(tokens_so_far)], tokens_so_far)
        if extends:
            chains[-1].append(turn)
        else:
            chains.append([turn])
        tokens_so_far = np.concatenate([prompt, completion.token_ids])
    return [_merge(rollout, chain, last_segments, token_fields) for chain in chains]


def _merge(
    rollout: Rollout, chain: list[Turn], last_segments: bool, token_fields: Mapping[str, TokenField]
) -> TrainingSequence:
    completions = [completion for completion, _ in chain]
    last = completions[-1]
    token_ids = np.concatenate([last.prompt_token_ids, last.token_ids]).astype(np.int32)

    def laid(fill: float, dtype: DTypeLike, of_turns: Sequence[Array | float]) -> Array:
        """[T]: the values of each turn where its tokens were sampled, `fill` elsewhere."""
        whole = np.full(len(token_ids), fill, dtype)
        for completion, values in zip(completions, of_turns, strict=True):
            start = len(completion.prompt_token_ids)
            whole[start : start + len(completion.token_ids)] = values
        return whole

    def laid_field(name: str, field: TokenField) -> Array:
        given = [completion.token_fields.get(name, field.fill) for completion in completions]
        return laid(field.fill, field.array_dtype, given)

    return TrainingSequence(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        loss_weight=0.0,  # the normalisation's to say, when the step is packed
        temperature=last.temperature,
        token_ids=token_ids,
        loss_mask=laid(False, bool, [_in_loss(completion, last_segments) for completion in completions]),
        behaviour_logprobs=laid(0.0, np.float32, [completion.logprobs for completion in completions]),
        versions=laid(-1, np.int32, [_versions(completion) for completion in completions]),
        advantages=laid(0.0, np.float32, [advantage for _, advantage in chain]),
        token_fields={name: laid_field(name, field) for name, field in token_fields.items()},
    )


def _in_loss(completion: Completion, last_segments: bool) -> Array:
    first = completion.segments[-1] if last_segments and completion.segments else 0
    return np.arange(len(completion.token_ids)) >= first


def _versions(completion: Completion) -> Array:
    versions = np.full(len(completion.token_ids), -1, dtype=np.int32)
    for span in completion.spans:
        versions[span.start : span.end] = span.version
    return versions
