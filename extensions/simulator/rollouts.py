"""Makes records of simulated rollouts. Pure computation."""

import numpy as np

from contracts.records import Completion, Rollout, VersionSpan


def rollout(
    group_id: int, member: int, prompt_tokens: int, spans: list[VersionSpan], truncated: bool, reward: float
) -> Rollout:
    """Returns a rollout of one turn, whose tokens and log-probabilities are zeros."""
    tokens = spans[-1].end
    completion = Completion(
        prompt_token_ids=np.zeros(prompt_tokens, dtype=np.int32),
        token_ids=np.zeros(tokens, dtype=np.int32),
        logprobs=np.zeros(tokens, dtype=np.float32),
        spans=spans,
        temperature=1.0,
        finish_reason="length" if truncated else "stop",
    )
    return Rollout(
        run="simulated",
        rollout_id=f"{group_id}-{member}",
        group_id=group_id,
        problem_id=f"simulated/{group_id}",
        domain="simulated",
        draw=group_id,
        completions=[completion],
        reward=reward,
        success=reward,
        status="truncated" if truncated else "ok",
    )
