"""Checks parts of a run that are possible alone and wrong together: each refusal is one clear line."""

from collections.abc import Iterable, Mapping, Sequence

from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.training.period import conflict


def check_together(config: RunConfig, parts: Mapping[str, Sequence[object]]) -> None:
    """`parts`: what the configuration names, as built, by section."""
    (objective,) = parts["objective"]
    (advantage,) = parts["advantage"]
    (domain,) = parts["domain"]
    rewards = parts.get("rewards", [])
    _check_baseline(objective, advantage)
    _check_base(config, objective)
    _check_period(config, *parts["trainer"])
    _check_has_teacher(config, objective, domain.informs_reference)
    terms = [objective, *parts.get("regularisers", [])]
    _check_informed(domain, terms)
    _check_renewal(config, terms)
    of_rewards = getattr(advantage, "advantage", advantage)  # inside StepStd
    if components := getattr(advantage, "components", None):
        _check_components(config, type(advantage).__name__, components, rewards)
    if getattr(of_rewards, "needs_rewards_from_zero", False):
        _check_from_zero(config, type(of_rewards).__name__, rewards)
    if getattr(of_rewards, "needs_rewards_of_0_and_1", False):
        _check_right_or_wrong(config, of_rewards, rewards)
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


def _check_base(config: RunConfig, objective: object) -> None:
    if inner := getattr(objective, "policy", None):
        _check_base(config, inner)
    if getattr(objective, "base", None) == "proximal" and config.epochs == 1:
        raise PlanError(
            "objective: base=proximal compares with the policy before the step, from which a single update "
            "does not differ; set epochs=2 or more, or base=behaviour"
        )


def _check_period(config: RunConfig, trainer: object) -> None:
    if why := conflict(trainer, config.epochs):
        raise PlanError(why)


def _check_has_teacher(config: RunConfig, objective: object, informed: bool) -> None:
    """A reference server with the start model teaches nothing, unless it is told more."""
    reference = config.reference
    own = reference and (reference.model or reference.arguments.get("model"))
    if getattr(objective, "needs_teacher", False) and not own and not informed:
        raise PlanError(
            f"objective: {type(objective).__name__} needs a teacher: set "
            "+reference.arguments.model to the directory of another model, or domain=informed"
        )


def _check_informed(domain: object, terms: Sequence[object]) -> None:
    if domain.informs_reference and not any(map(_needs_reference, terms)):
        raise PlanError(
            f"domain: {type(domain).__name__} tells the reference more, and no term of the loss needs a "
            "reference; set objective=distillation"
        )


def _check_renewal(config: RunConfig, terms: Sequence[object]) -> None:
    """`terms`: of the loss."""
    reference = config.reference
    if reference is None or reference.renew_every is None:
        return
    given = f"reference.renew_every={reference.renew_every}"
    if reference.model != config.inference.model or "model" in reference.arguments:
        raise PlanError(
            f"{given}: a teacher, which has a model of its own, is never renewed; "
            "set reference.renew_every=null"
        )
    if not any(map(_needs_reference, terms)):
        raise PlanError(
            f"{given}: no term of the loss needs a reference; add "
            "pipelinerl.objectives.kl.KlToReference to regularisers, or set reference=null"
        )


def _needs_reference(term: object) -> bool:
    inner = getattr(term, "policy", None)
    return getattr(term, "needs_reference", False) or (inner is not None and _needs_reference(inner))


def _check_right_or_wrong(config: RunConfig, advantage: object, rewards: Sequence[object]) -> None:
    name = type(advantage).__name__
    if rewards:
        terms = ", ".join(type(term).__name__ for term in rewards)
        raise PlanError(
            f"advantage: {name} needs rewards of 0 and 1, and rewards adds {terms}; set rewards=[]"
        )
    given = getattr(config.domain, "rewards", None)
    if isinstance(given, Mapping) and any(reward not in (0, 1) for reward in given.values()):
        values = ", ".join(f"{reward:g}" for reward in given.values())
        raise PlanError(f"advantage: {name} needs rewards of 0 and 1, and domain.rewards has {values}")
    if advantage.k > config.group_size:
        raise PlanError(f"advantage.k={advantage.k} is more than the group_size={config.group_size} attempts")


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


def _check_components(
    config: RunConfig, name: str, components: Iterable[str], rewards: Sequence[object]
) -> None:
    if config.credit == "turn":
        raise PlanError(
            f"advantage: {name} compares components of rewards, and the rewards of turns have none; set "
            "credit=trajectory"
        )
    for term in rewards:
        if term.name not in components:
            raise PlanError(
                f"advantage: {name} gives {term.name} of rewards no weight; set "
                f"+advantage.components.{term.name} to one, or to 0"
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
