"""Builds the components that form steps, from a run's configuration."""

from collections.abc import Callable, Sequence
from functools import partial

from contracts.records import Rollout
from pipelinerl.batching.credit import CREDIT, Advantage, TurnAdvantages
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.components import instantiate
from pipelinerl.config import RunConfig


def build_credit(config: RunConfig, advantage: Advantage) -> Callable[[Sequence[Rollout]], TurnAdvantages]:
    return partial(CREDIT[config.credit], advantage=advantage)


def build_packing(config: RunConfig, first_step: int = 0) -> object:
    """Returns the packing. Raises TypeError if its class lacks a method of `pipelinerl.packing.Fifo`."""
    packing = instantiate(config.packing, ranks=config.world.trainer_ranks, first_step=first_step)
    if missing := [name for name in ("add_rollout", "close_step") if not hasattr(packing, name)]:
        raise TypeError(f"{type(packing).__name__} has no method {' and no '.join(missing)}")
    return packing


def longest_rollout(config: RunConfig) -> int | None:
    """Returns the largest number of tokens of a rollout: a micro-batch, or one turn if that may be longer.

    Returns None if the packing has no option `micro_batch_tokens`.
    """
    budget = getattr(config.packing, "micro_batch_tokens", None)
    return budget and max(budget, config.sampling.max_prompt_tokens + config.sampling.max_tokens)


def build_formation(config: RunConfig, first_step: int = 0) -> StepFormation:
    """Returns the StepFormation of a run, from `first_step` on."""
    advantage = instantiate(config.advantage)
    return StepFormation(
        advantages=build_credit(config, advantage),
        over_step=getattr(advantage, "over_step", None),
        least_members=getattr(advantage, "least_members", 2),
        filters=[instantiate(component) for component in config.filters],
        stale=StalePolicy(config.on_stale, config.lag_limit),
        sequences=partial(
            training_sequences,
            last_segments=config.rollout.train_segments == "last",
            token_fields=config.token_fields,
        ),
        token_fields=config.token_fields,
        normalisation=instantiate(config.normalisation),
        packing=build_packing(config, first_step=first_step),
        batch_size=config.batch_size,
        buffer_whole_step=config.schedule == "conventional" and config.sampling.seeded,
        first_step=first_step,
        longest_rollout=longest_rollout(config),
    )
