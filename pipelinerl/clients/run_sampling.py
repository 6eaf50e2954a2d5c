"""Sampling parameters of training rollouts, for processes that need no client, such as the trainer."""

import json
from pathlib import Path

from pipelinerl.clients.completions import Sampling
from pipelinerl.config import RunConfig


def training_sampling(config: RunConfig) -> Sampling:
    options = config.sampling
    seed = config.seed if options.seeded else None
    return Sampling(
        config.served_model,
        options.temperature,
        options.max_tokens,
        seed,
        vocabulary(config),
        models=tuple(config.inference.models.items()),
    )


def vocabulary(config: RunConfig) -> int | None:
    """Returns the size of the model's vocabulary, or None if it is unknown."""
    file = Path(config.model.path or "") / "config.json"
    if config.inference.model is not None or not file.is_file():
        return None
    shape = json.loads(file.read_text())
    return (shape.get("text_config") or shape).get("vocab_size")
