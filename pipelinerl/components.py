"""Builds the parts that the configuration names by class path (`_target_`)."""

import hydra.utils

from pipelinerl.config import Component, RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.samplers.base import Sampler


def instantiate(component: Component, **context: object) -> object:
    """Returns an instance with the configured options; `context` is what only the run knows (ranks, seed)."""
    options = component.model_dump(by_alias=True)
    # Lists and dicts, not OmegaConf's, which would make configurations of the objects within them.
    make = hydra.utils.instantiate({"_convert_": "all"} | options | {"_partial_": True})
    return make(**context)


def build_domain(config: RunConfig) -> Domain:
    return instantiate(config.domain, seed=config.seed)


def build_sampler(config: RunConfig, domain: Domain) -> Sampler:
    return instantiate(config.sampler, domain=domain, seed=config.seed)


def needed_capabilities(config: RunConfig, domain: Domain) -> dict[str, str]:
    """Returns the capabilities that rollouts need of every server, each with what asks for it."""
    seeded = {"seed": "sampling.seeded=true needs seeds"} if config.sampling.seeded else {}
    why = "the domain {} needs {} (docs/extend.md)"
    return seeded | {name: why.format(domain.name, name) for name in sorted(domain.needs)}
