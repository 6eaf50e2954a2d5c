"""Rollouts -> training sequences: token for token what the servers sampled, never re-tokenised."""

import numpy as np

from contracts.records import Completion, Rollout, TrainingSequence


def training_sequences(rollout: Rollout, advantage: float) -> list[TrainingSequence]:
    """One sequence per chain of turns: a turn whose prompt extends the tokens so far exactly is
    merged into their sequence; otherwise a new sequence begins."""
    chains: list[list[Completion]] = []
    tokens_so_far = np.empty(0, dtype=np.int32)
    for completion in rollout.completions:
        prompt = completion.prompt_token_ids
        extends = len(tokens_so_far) and np.array_equal(prompt[: len(tokens_so_far)], tokens_so_far)
        if extends:
            chains[-1].append(completion)
        else:
            chains.append([completion])
        tokens_so_far = np.concatenate([prompt, completion.token_ids])
    return [_merge(rollout, chain, advantage) for chain in chains]


def _merge(rollout: Rollout, chain: list[Completion], advantage: float) -> TrainingSequence:
    total = len(chain[-1].prompt_token_ids) + len(chain[-1].token_ids)
    token_ids = np.concatenate([chain[-1].prompt_token_ids, chain[-1].token_ids]).astype(np.int32)
    loss_mask = np.zeros(total, dtype=bool)
    behaviour_logprobs = np.zeros(total, dtype=np.float32)
    versions = np.full(total, -1, dtype=np.int32)
    for turn in chain:
        start = len(turn.prompt_token_ids)
        end = start + len(turn.token_ids)
        loss_mask[start:end] = True
        behaviour_logprobs[start:end] = turn.logprobs
        for span in turn.spans:
            versions[start + span.start : start + span.end] = span.version
    return TrainingSequence(
        rollout_id=rollout.rollout_id,
        group_id=rollout.group_id,
        temperature=chain[0].temperature,
        token_ids=token_ids,
        loss_mask=loss_mask,
        behaviour_logprobs=behaviour_logprobs,
        versions=versions,
        advantages=np.where(loss_mask, np.float32(advantage), np.float32(0)).astype(np.float32),
    )
