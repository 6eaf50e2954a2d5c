"""Adds the configured terms to the rewards of a complete group. Pure, no I/O."""

from collections.abc import Sequence

import msgspec
import numpy as np

from contracts.records import Rollout
from pipelinerl.rewards.base import RewardTerm, components_of


def with_terms(group: list[Rollout], terms: Sequence[RewardTerm], version: int) -> list[Rollout]:
    """Returns the group with the terms added to its rewards, recorded by name, except for failed members."""
    good = [rollout for rollout in group if not rollout.failed]
    if not terms or not good:
        return group
    added = {term.name: _checked(term.name, term(good, version), len(good)) for term in terms}
    shaped = {}
    for i, rollout in enumerate(good):
        parts = {name: float(values[i]) for name, values in added.items()}
        components = components_of(rollout) | parts
        shaped[rollout.rollout_id] = msgspec.structs.replace(
            rollout, reward=rollout.reward + sum(parts.values()), reward_components=components
        )
    return [shaped.get(rollout.rollout_id, rollout) for rollout in group]


def _checked(name: str, values: np.ndarray, members: int) -> np.ndarray:
    if np.shape(values) != (members,) or not np.isfinite(values).all():
        raise ValueError(f"the reward term {name} gave {values} for {members} rollouts")
    return values
