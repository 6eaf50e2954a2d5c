"""Checks what belongs together in a run that learns from demonstrations, and in one that compares nothing."""

from collections.abc import Mapping, Sequence

from pipelinerl.advantages import Constant
from pipelinerl.config import RunConfig
from pipelinerl.errors import PlanError


def check_demonstrated(config: RunConfig, parts: Mapping[str, Sequence[object]]) -> None:
    """`parts`: what the configuration names, as built, by section."""
    (domain,) = parts["domain"]
    (objective,) = parts["objective"]
    (advantage,) = parts["advantage"]
    name = type(objective).__name__
    least = getattr(advantage, "least_members", 2)
    if config.group_size < least:
        raise PlanError(
            f"group_size={config.group_size}: advantage {type(advantage).__name__} compares the attempts of "
            "a group; set group_size=2 or more, or advantage=constant"
        )
    learns_from = getattr(objective, "learns_from_demonstrations", 0)
    if domain.demonstrated and learns_from != domain.demonstrated:
        fit = {1: "cross_entropy", 2: "dpo"}[domain.demonstrated]
        raise PlanError(
            f"domain: the file has {domain.demonstrated} answer(s) a line, from which objective {name} does "
            f"not learn; set objective={fit}"
        )
    if domain.demonstrated and not isinstance(advantage, Constant):
        raise PlanError("domain: answers of a file are not compared: set advantage=constant")
    in_pairs = learns_from == 2
    if in_pairs and not domain.demonstrated:
        raise PlanError(f"objective: {name} learns from pairs of a file: set domain=demonstrations")
    if in_pairs and config.credit != "completion":
        raise PlanError(f"objective: {name} tells the preferred answer by its reward: set credit=completion")
    if config.credit == "completion" and not in_pairs:
        raise PlanError(
            "credit=completion gives each completion its own reward, for pairs of answers (objective=dpo); "
            f"with objective {name} set credit=trajectory"
        )
