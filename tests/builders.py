"""Small records for tests."""

import numpy as np

from contracts.records import Completion, Rollout, VersionSpan


def completion(prompt: list[int], sampled: list[int], version: int = 0, **changes) -> Completion:
    values = {
        "prompt_token_ids": np.array(prompt, dtype=np.int32),
        "token_ids": np.array(sampled, dtype=np.int32),
        "logprobs": np.linspace(-0.5, -1.5, len(sampled), dtype=np.float32),
        "spans": [VersionSpan(version, 0, len(sampled))],
        "temperature": 1.0,
        "finish_reason": "stop",
    }
    return Completion(**values | changes)


def rollout(group_id: int, member: int = 0, reward: float = 0.0, **changes) -> Rollout:
    values = {
        "run": "r",
        "rollout_id": f"{group_id}-{member}",
        "group_id": group_id,
        "problem_id": "p",
        "domain": "d",
        "completions": [completion([1, 2], [3, 4, 5])],
        "reward": reward,
    }
    return Rollout(**values | changes)


def group(group_id: int, rewards: list[float], **changes) -> list[Rollout]:
    return [rollout(group_id, member, reward, **changes) for member, reward in enumerate(rewards)]
