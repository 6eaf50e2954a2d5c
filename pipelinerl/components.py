"""Builds the parts that the configuration names by class path (`_target_`)."""

import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import hydra.utils
import numpy as np

from contracts.records import Rollout
from pipelinerl.batching.credit import CREDIT, Advantage, TurnAdvantages
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.batching.staleness import StalePolicy
from pipelinerl.batching.step_formation import StepFormation
from pipelinerl.clients.chat_template import ChatTemplate
from pipelinerl.clients.llm_client import LLMClient, Sampling
from pipelinerl.clients.partial_completions import SegmentPolicy
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import Component, RunConfig, WeightsConfig
from pipelinerl.domains.base import Domain
from pipelinerl.errors import PlanError
from pipelinerl.errors.first_failures import FirstFailures
from pipelinerl.judging.child import judging_service
from pipelinerl.judging.client import SOCKET_VARIABLE, JudgingClient
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.observers import Observer
from pipelinerl.samplers.base import Sampler


def instantiate(component: Component, **context: object) -> object:
    """Returns an instance with the configured options; `context` is what only the run knows (ranks, seed)."""
    options = component.model_dump(by_alias=True)
    # Lists and dicts, not OmegaConf's, which would make configurations of the objects within them.
    make = hydra.utils.instantiate({"_convert_": "all"} | options | {"_partial_": True})
    return make(**context)


def build_domain(config: RunConfig) -> Domain:
    return instantiate(config.domain, seed=config.seed)


def judging_of(options: JudgingConfig, domain: Domain) -> JudgingConfig:
    """Returns the options with the verifiers of the domain among them.

    Raises PlanError for a domain that names one which is not configured.
    """
    own = {name: dict(spec) for name, spec in domain.verifiers.items() if spec}
    if missing := sorted(domain.verifiers.keys() - own.keys() - options.verifiers.keys()):
        raise PlanError(
            f"the domain {domain.name} names the verifier {missing[0]}: set "
            f"judging.verifiers.{missing[0]} to the _target_ of its class and its options"
        )
    return JudgingConfig.model_validate(options.model_dump() | {"verifiers": options.verifiers | own})


def build_judge(config: RunConfig) -> JudgingClient | None:
    """Returns the client of the judging service, or None where nothing needs one."""
    if not config.judging.verifiers:
        return None
    return JudgingClient(os.environ[SOCKET_VARIABLE], config.judging, FirstFailures("judgements"))


@asynccontextmanager
async def judge_of(
    domain: Domain, options: JudgingConfig | None = None
) -> AsyncIterator[JudgingClient | None]:
    """Yields a client of a judging service that is started for the context, or None without verifiers.

    It is for commands; in a run the launcher starts the service. Raises JudgingEndedError.
    """
    complete = judging_of(options or JudgingConfig(), domain)
    if not complete.verifiers:
        yield None
        return
    async with judging_service(complete) as judge:
        yield judge


def needed_capabilities(config: RunConfig, domain: Domain) -> dict[str, str]:
    """Returns the capabilities that every server must declare, each with what asks for it."""
    seeded = {"seed": "sampling.seeded=true needs seeds"} if config.sampling.seeded else {}
    seeded |= _needed_for_weights(config.weights)
    why = "the domain {} needs {} (docs/extend.md)"
    return seeded | {name: why.format(domain.name, name) for name in sorted(domain.needs)}


def _needed_for_weights(weights: WeightsConfig) -> dict[str, str]:
    if weights.transport == "group":
        return {}
    why = f"weights.transport={weights.transport} needs servers that load stored weights"
    deltas = {"delta": "weights.deltas=true needs servers that apply deltas"} if weights.deltas else {}
    return {weights.transport: why} | deltas


def build_observers(config: RunConfig) -> list[Observer]:
    return [instantiate(component) for component in config.observers.values()]


def build_sampler(config: RunConfig, domain: Domain) -> Sampler:
    return instantiate(config.sampler, domain=domain, seed=config.seed)


def build_credit(config: RunConfig, advantage: Advantage) -> Callable[[Sequence[Rollout]], TurnAdvantages]:
    return partial(CREDIT[config.credit], advantage=advantage)


def build_packing(config: RunConfig, first_step: int = 0) -> object:
    """Returns the packing. Raises TypeError if its class lacks a method of `pipelinerl.packing.Fifo`."""
    packing = instantiate(config.packing, ranks=config.world.trainer_ranks, first_step=first_step)
    if missing := [name for name in ("add_rollout", "close_step") if not hasattr(packing, name)]:
        raise TypeError(f"{type(packing).__name__} has no method {' and no '.join(missing)}")
    return packing


def longest_rollout(config: RunConfig) -> int | None:
    """Returns the most tokens of a rollout: those of a micro-batch, or of one turn if that may have more.

    Returns None for a packing that has no such option.
    """
    budget = getattr(config.packing, "micro_batch_tokens", None)
    return budget and max(budget, config.sampling.max_prompt_tokens + config.sampling.max_tokens)


def build_formation(config: RunConfig, first_step: int = 0) -> StepFormation:
    """Returns what makes groups into the rows of steps, from `first_step` on."""
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


def build_client(
    config: RunConfig,
    session: aiohttp.ClientSession,
    pool: ServerPool,
    judge: JudgingClient | None = None,
) -> LLMClient:
    """Returns the client that training rollouts use."""
    segments = SegmentPolicy.of(config.rollout)
    template = None if config.inference.model else ChatTemplate(str(config.model.path))
    decode = build_decoder(config)
    return LLMClient(
        session,
        pool,
        training_sampling(config),
        segments,
        decode=decode,
        template=template,
        judge=judge,
        forms=ServerForms(session),
    )


def build_decoder(config: RunConfig) -> Callable[[np.ndarray], str] | None:
    """Returns a decoder of the model's tokens, or None without segments or without a tokenizer.

    A character may begin in one segment and end in the next.
    """
    if config.rollout.segment_tokens is None or config.inference.model is not None:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model.path, local_files_only=True)
    return partial(tokenizer.decode, skip_special_tokens=True)


def training_sampling(config: RunConfig) -> Sampling:
    options = config.sampling
    seed = config.seed if options.seeded else None
    return Sampling(config.served_model, options.temperature, options.max_tokens, seed, vocabulary(config))


def vocabulary(config: RunConfig) -> int | None:
    """Returns how many tokens the model has; None where it says nothing of it."""
    file = Path(config.model.path or "") / "config.json"
    if config.inference.model is not None or not file.is_file():
        return None
    shape = json.loads(file.read_text())
    return (shape.get("text_config") or shape).get("vocab_size")
