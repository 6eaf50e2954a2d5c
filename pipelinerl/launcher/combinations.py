"""Checks parts of a run that are possible alone and wrong together: each refusal is one clear line."""

from collections.abc import Mapping, Sequence

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError


def check_together(config: RunConfig, parts: Mapping[str, Sequence[object]]) -> None:
    """`parts`: what the configuration names, as built, by section."""
    (objective,) = parts["objective"]
    (advantage,) = parts["advantage"]
    rewards = parts.get("rewards", [])
    _check_baseline(objective, advantage)
    if getattr(advantage, "needs_rewards_from_zero", False):
        _check_from_zero(config, type(advantage).__name__, rewards)
    for term in rewards:
        _check_limit(config, term)


def _check_baseline(objective: object, advantage: object) -> None:
    learned = [getattr(part, "learned_baseline", False) for part in (objective, advantage)]
    names = type(objective).__name__, type(advantage).__name__
    if learned == [False, True]:
        raise PlanError(
            f"advantage: {names[1]} takes no baseline off, and neither does objective {names[0]}; set "
            "objective=value_baseline, or another advantage"
        )
    if learned == [True, False]:
        raise PlanError(
            f"objective: {names[0]} takes a learned baseline off, and advantage {names[1]} another one "
            "before; set advantage=value"
        )


def _check_from_zero(config: RunConfig, name: str, rewards: Sequence[object]) -> None:
    """Checks what is known of the rewards; a group that has a negative one all the same is dropped."""
    below = [type(term).__name__ for term in rewards if getattr(term, "subtracts", False)]
    if below:
        raise PlanError(
            f"advantage: {name} needs rewards that are not negative, and {', '.join(below)} of rewards takes "
            "some away; leave it out, or choose another advantage"
        )
    given = getattr(config.domain, "rewards", None)
    if isinstance(given, Mapping) and any(isinstance(r, int | float) and r < 0 for r in given.values()):
        raise PlanError(
            f"advantage: {name} needs rewards that are not negative; domain.rewards has {min(given.values())}"
        )


def _check_limit(config: RunConfig, term: object) -> None:
    turns = getattr(config.domain, "turns", 1)
    longest = config.sampling.max_tokens * (turns if isinstance(turns, int) else 1)
    limit = getattr(term, "max_tokens", None)
    if isinstance(limit, int) and limit > longest:
        raise PlanError(
            f"rewards: {type(term).__name__}.max_tokens={limit} is above the {longest} tokens that an answer "
            "may have, so it punishes too late or never; set it to ${sampling.max_tokens}"
        )
