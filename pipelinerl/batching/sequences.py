"""Rollouts -> training sequences: token for token what the servers sampled, never re-tokenised."""

from collections.abc import Sequence

import numpy as np

from contracts.records import Completion, Rollout, TrainingSequence

Turn = tuple[Completion, float]  # and its advantage


def training_sequences(
    rollout: Rollout, advantages: Sequence[float], last_segments: bool = False
) -> list[TrainingSequence]:
    """One sequence per chain of turns: a turn whose prompt extends the tokens so far exactly is
    merged into their sequence; otherwise a new sequence begins. `advantages`: one a completion.
    `last_segments`: leave all but the last segment of each completion out of the loss."""
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
    return [_merge(rollout, chain, last_segments) for chain in chains]


def _merge(rollout: Rollout, chain: list[Turn], last_segments: bool) -> TrainingSequence:
    last, _ = chain[-1]
    token_ids = np.concatenate([last.prompt_token_ids, last.token_ids]).astype(np.int32)
    total = len(token_ids)
    loss_mask = np.zeros(total, dtype=bool)
    behaviour_logprobs = np.zeros(total, dtype=np.float32)
    versions = np.full(total, -1, dtype=np.int32)
    advantages = np.zeros(total, dtype=np.float32)
    for completion, advantage in chain:
        start = len(completion.prompt_token_ids)
        end = start + len(completion.token_ids)
        in_loss = completion.segments[-1] if last_segments and completion.segments else 0
        loss_mask[start + in_loss : end] = True
        behaviour_logprobs[start:end] = completion.logprobs
        advantages[start:end] = advantage
        for span in completion.spans:
            versions[start + span.start : start + span.end] = span.version
    return TrainingSequence(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        loss_weight=0.0,  # the normalisation's to say, when the step is packed
        temperature=last.temperature,
        token_ids=token_ids,
        loss_mask=loss_mask,
        behaviour_logprobs=behaviour_logprobs,
        versions=versions,
        advantages=advantages,
    )
