"""Building the parts that the configuration names by class path (`_target_`)."""

from pathlib import Path

import hydra.utils

from pipelinerl.config import Component, RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.llm_client import Sampling
from pipelinerl.sampling import ShuffledEpochs
from pipelinerl.streams import Streams
from pipelinerl.streams.files import FileStreams


def build(component: Component, **context: object) -> object:
    """An instance with the configured options; `context` is what only the run knows (ranks, seed)."""
    return hydra.utils.instantiate(component.model_dump(by_alias=True), **context)


def build_domain(config: RunConfig) -> Domain:
    return build(config.domain, seed=config.seed)


def build_sampler(config: RunConfig, domain: Domain) -> ShuffledEpochs:
    return build(config.sampler, size=domain.train_size, seed=config.seed)


def build_packing(config: RunConfig, first_step: int = 0) -> object:
    ranks, batch_size = config.world.trainer_ranks, config.batch_size
    return build(config.packing, ranks=ranks, batch_size=batch_size, first_step=first_step)


def training_sampling(config: RunConfig) -> Sampling:
    options = config.sampling
    seed = config.seed if options.seeded else None
    return Sampling(config.served_model, options.temperature, options.max_tokens, seed)


def open_streams(config: RunConfig, run_dir: Path) -> Streams:
    options = config.streams
    return FileStreams(run_dir / "streams", options.segment_bytes, options.keep_bytes)
