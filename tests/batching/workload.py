"""Random rollouts of every kind that the preprocessor must handle."""

import numpy as np

from contracts.records import Completion, Rollout, VersionSpan
from contracts.token_fields import TokenField

FIELDS = {
    "mark": TokenField(dtype="uint8", fill=9),
    "weight": TokenField(dtype="float32", fill=-0.5),
}
GROUP_SIZE = 4


def random_groups(seed: int, count: int) -> list[list[Rollout]]:
    """Returns groups with several turns, changed prompts, segments, failed and truncated members."""
    generator = np.random.default_rng(seed)
    return [_group(generator, group_id, version=group_id // 12) for group_id in range(count)]


def _group(generator: np.random.Generator, group_id: int, version: int) -> list[Rollout]:
    agreeing = generator.random() < 0.1
    return [_rollout(generator, group_id, member, version, agreeing) for member in range(GROUP_SIZE)]


def _rollout(
    generator: np.random.Generator, group_id: int, member: int, version: int, agreeing: bool
) -> Rollout:
    facts = {"run": "r", "rollout_id": f"{group_id}-{member}", "group_id": group_id}
    facts |= {"problem_id": "p", "domain": "d", "draw": int(generator.integers(1000))}
    if generator.random() < 0.25:
        return Rollout(**facts, status="failed:timeout")
    turns = int(generator.integers(1, 5))
    return Rollout(
        **facts,
        completions=_turns(generator, turns, version),
        reward=1.0 if agreeing else float(generator.normal()),
        turn_rewards=[] if agreeing else generator.normal(size=generator.integers(turns + 1)).tolist(),
        status="truncated" if generator.random() < 0.2 else "ok",
    )


def _turns(generator: np.random.Generator, count: int, version: int) -> list[Completion]:
    completions: list[Completion] = []
    said = np.empty(0, np.int32)
    for _ in range(count):
        rewritten = len(said) and generator.random() < 0.3
        said[-1 if rewritten else len(said) :] += 1  # a change of the last token alone makes another prompt
        prompt = np.concatenate([said, _ids(generator, generator.integers(0 if len(said) else 1, 6))])
        completions.append(_completion(generator, prompt, version))
        said = np.concatenate([prompt, completions[-1].token_ids])
    return completions


def _completion(generator: np.random.Generator, prompt: np.ndarray, version: int) -> Completion:
    tokens = int(generator.integers(0, 12))
    bounds = [0, *sorted(generator.integers(tokens + 1, size=2).tolist()), tokens]
    oldest = version + int(generator.choice([-3, -1, 3], p=[0.05, 0.92, 0.03]))
    return Completion(
        prompt_token_ids=prompt,
        token_ids=_ids(generator, tokens),
        logprobs=-generator.random(tokens, dtype=np.float32),
        spans=[VersionSpan(max(oldest + min(i, 1), 0), bounds[i], bounds[i + 1]) for i in range(3)],
        temperature=1.0,
        finish_reason="stop",
        segments=bounds[1:2] if generator.random() < 0.5 else [],
        token_fields={
            "mark": generator.integers(256, size=tokens, dtype=np.uint8),
            "weight": generator.random(tokens, dtype=np.float32),
        },
    )


def _ids(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.integers(100, size=count, dtype=np.int32)
