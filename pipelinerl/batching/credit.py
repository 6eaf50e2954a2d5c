"""Credit assignment: the advantage of each turn of the rollouts of a group.

`config.credit` selects the function. The first two are equal for rollouts of one turn.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import numpy as np

from contracts.records import Rollout
from pipelinerl.advantages import UnfitRewardsError
from pipelinerl.rewards.base import components_of

Advantage = Callable[[np.ndarray], np.ndarray]  # rewards [G], or components [G, K] -> advantages [G]
TurnAdvantages = list[np.ndarray]  # G arrays, each [turns]


def whole_trajectory(rollouts: Sequence[Rollout], advantage: Advantage) -> TurnAdvantages:
    """Returns the rollout's advantage for each of its turns, computed from its reward or reward components.

    Raises UnfitRewardsError if the advantage needs a component that a reward lacks.
    """
    advantages = advantage(_rewards(rollouts, getattr(advantage, "components", None)))
    turns = [len(rollout.completions) for rollout in rollouts]
    ends = accumulate(turns)
    of_turns = np.repeat(advantages, turns)
    return [of_turns[end - count : end] for end, count in zip(ends, turns, strict=True)]


def _rewards(rollouts: Sequence[Rollout], components: Iterable[str] | None) -> np.ndarray:
    """Returns the rewards [G] float32, or their given components [G, K] float32."""
    if components is None:
        return np.array([rollout.reward for rollout in rollouts], dtype=np.float32)
    names = [*components]
    return np.array([[_component(rollout, name) for name in names] for rollout in rollouts], dtype=np.float32)


def _component(rollout: Rollout, name: str) -> float:
    given = components_of(rollout)
    if name not in given:
        has = ", ".join(given)
        raise UnfitRewardsError(
            f"no_component_{name}", f"rollout {rollout.rollout_id} has no reward component {name}, but {has}"
        )
    return given[name]


def per_turn(rollouts: Sequence[Rollout], advantage: Advantage) -> TurnAdvantages:
    """Returns the advantage of each turn's return to go, compared among the rollouts that have the turn.

    Reward that is not in `Rollout.turn_rewards` is added to the last turn. Source: MT-GRPO, arXiv 2505.11821,
    but computed from returns to go and normalised once.
    """
    returns = [_returns_to_go(rollout) for rollout in rollouts]
    advantages = [np.zeros_like(r) for r in returns]
    for turn in range(max(len(r) for r in returns)):
        came_as_far = [i for i, r in enumerate(returns) if len(r) > turn]
        column = advantage(np.array([returns[i][turn] for i in came_as_far], dtype=np.float32))
        for i, value in zip(came_as_far, column, strict=True):
            advantages[i][turn] = value
    return advantages


def own_reward(rollouts: Sequence[Rollout], advantage: Advantage) -> TurnAdvantages:
    """Returns the reward of each completion as its advantage, without a comparison."""
    return [np.array(rollout.turn_rewards, dtype=np.float32) for rollout in rollouts]


def _returns_to_go(rollout: Rollout) -> np.ndarray:
    """Returns the sum of the rewards from each turn on, [turns] float32."""
    earned = np.zeros(len(rollout.completions), dtype=np.float32)
    earned[: len(rollout.turn_rewards)] = rollout.turn_rewards
    if len(earned):
        earned[-1] += rollout.reward - sum(rollout.turn_rewards)
    return earned[::-1].cumsum()[::-1]


CREDIT = {"trajectory": whole_trajectory, "turn": per_turn, "completion": own_reward}
