"""Checks for components that are valid alone and wrong together. The functions raise PlanError."""

from collections.abc import Iterable, Mapping, Sequence

from pipelinerl.advantages import Constant
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError
from pipelinerl.objectives.nesting import needs_whole_rollouts, nested
from pipelinerl.training.period import conflict


def check_together(config: RunConfig, built: Mapping[str, Sequence[object]]) -> None:
    """built: the components by section."""
    (objective,) = built["objective"]
    (advantage,) = built["advantage"]
    (domain,) = built["domain"]
    rewards = built.get("rewards", [])
    _check_baseline(objective, advantage)
    _check_base(config, objective)
    if why := conflict(*built["trainer"], config.epochs):
        raise PlanError(why)
    _check_has_teacher(config, objective, domain.informs_reference)
    terms = [objective, *built.get("regularisers", [])]
    _check_informed(domain, terms)
    if whole := [term for term in terms if needs_whole_rollouts(term)]:
        _check_packing(built.get("packing", []), whole[0])
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
    _check_who_renders(config)


def _check_who_renders(config: RunConfig) -> None:
    model = config.model
    if config.inference.model and (model.template or model.renderer != "auto"):
        raise PlanError(
            "model.template and model.renderer need the model's tokenizer, and with inference.model="
            f"{config.inference.model} the servers render prompts; leave them out"
        )


def _check_packing(packings: Sequence[object], term: object) -> None:
    if any(getattr(packing, "split_rollouts", False) for packing in packings):
        raise PlanError(
            f"packing.split_rollouts=true, and {type(term).__name__} needs all sequences of a rollout in one "
            "micro-batch: leave it out, or take an objective of tokens, such as cispo"
        )


def _check_baseline(objective: object, advantage: object) -> None:
    learned = [getattr(each, "learned_baseline", False) for each in (objective, advantage)]
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


def _check_has_teacher(config: RunConfig, objective: object, informed: bool) -> None:
    """A reference server with the start model is a teacher only if its prompts have more information."""
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
            "pipelinerl.objectives.kl.KlToReference to regularisers, or leave reference out"
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
    """Checks known rewards. A group that has a negative reward during the run is dropped."""
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


# --- demonstrations ----------------------------------------------------------------------------------


def check_demonstrated(config: RunConfig, built: Mapping[str, Sequence[object]]) -> None:
    """built: the components by section."""
    (domain,) = built["domain"]
    (objective,) = built["objective"]
    of_file = [inner for inner in nested(objective) if hasattr(inner, "learns_from_demonstrations")]
    learns_from = of_file[0].learns_from_demonstrations if of_file else 0
    if learns_from != domain.demonstrated:
        raise PlanError(_misfit(type((of_file or [objective])[0]).__name__, learns_from, domain.demonstrated))
    if domain.demonstrated:
        _check_of_file(config)
    _check_compared(config, built)
    in_pairs = learns_from == 2
    if in_pairs and config.credit != "completion":
        raise PlanError("objective: Dpo tells the preferred answer by its reward: set credit=completion")
    if config.credit == "completion" and not in_pairs:
        raise PlanError(
            "credit=completion gives each completion its own reward, for pairs of answers (objective=dpo); "
            f"with objective {type(objective).__name__} set credit=trajectory"
        )


def _misfit(name: str, learns_from: int, given: int) -> str:
    if not given:
        return f"objective: {name} learns from answers of a file: set domain=demonstrations"
    fit = {1: "cross_entropy", 2: "dpo"}[given]
    return (
        f"domain: the file has {given} answer(s) a line, and objective {name} does not learn from those; set "
        f"objective={fit}"
    )


def _check_compared(config: RunConfig, built: Mapping[str, Sequence[object]]) -> None:
    """Components that compare the attempts of a group need two of them."""
    (advantage,) = built["advantage"]
    (objective,) = built["objective"]
    if config.group_size < getattr(advantage, "least_members", 2):
        raise PlanError(
            f"group_size={config.group_size}: advantage {type(advantage).__name__} compares the attempts of "
            "a group; set group_size=2 or more, or advantage=constant"
        )
    needs_none = any(getattr(inner, "needs_no_advantage", False) for inner in nested(objective))
    if isinstance(advantage, Constant) and not needs_none:
        raise PlanError(
            f"advantage: Constant is 1 whatever the reward, from which objective {type(objective).__name__} "
            "learns nothing; choose another advantage"
        )
    if config.group_size == 1:
        for each in built.get("filters", []):
            if getattr(each, "compares_members", False):
                raise PlanError(
                    f"filters: {type(each).__name__} compares the attempts of a group, and group_size=1 "
                    "has one; set filters=[]"
                )


def _check_of_file(config: RunConfig) -> None:
    """Refuses settings that would have no effect."""
    if config.group_size > 1:
        raise PlanError(f"group_size={config.group_size}: a line is one attempt; set group_size=1")
    if config.advantage.target != f"{Constant.__module__}.{Constant.__name__}":
        raise PlanError("domain: answers of a file are not compared: set advantage=constant")
    if config.rewards:
        raise PlanError(
            "rewards: answers of a file are given, and no term of the reward counts; set rewards=[]"
        )
    if config.credit == "turn":
        raise PlanError(
            "credit=turn: an answer of a file is one turn; set credit=trajectory, or completion for pairs"
        )
    if config.token_fields:
        raise PlanError("token_fields: answers of a file have none; leave them out")
