"""Builds the client of training rollouts from a run's configuration."""

from collections.abc import Callable
from functools import partial

import aiohttp
import numpy as np

from pipelinerl.clients.conversations import build_conversations
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.partial_completions import SegmentPolicy
from pipelinerl.clients.run_sampling import training_sampling
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain
from pipelinerl.judging.client import JudgingClient


def build_client(
    config: RunConfig,
    session: aiohttp.ClientSession,
    pool: ServerPool,
    domain: Domain,
    judge: JudgingClient | None = None,
) -> LLMClient:
    """Returns the client of training rollouts."""
    segments = SegmentPolicy.of(config.rollout)
    conversations = None
    if config.inference.model is None:
        conversations = build_conversations(config.model, "tools" in domain.needs)
    decode = build_decoder(config)
    return LLMClient(
        session,
        pool,
        training_sampling(config),
        segments,
        decode=decode,
        conversations=conversations,
        options=config.model.template or {},
        judge=judge,
        forms=ServerForms(session),
    )


def build_decoder(config: RunConfig) -> Callable[[np.ndarray], str] | None:
    """Returns a decoder of the model's tokens, or None without segments or without a tokenizer.

    It decodes all segments together, because a character may span two segments.
    """
    if config.rollout.segment_tokens is None or config.inference.model is not None:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model.path, local_files_only=True)
    return partial(tokenizer.decode, skip_special_tokens=True)
