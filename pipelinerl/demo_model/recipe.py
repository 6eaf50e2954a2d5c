"""What a recipe is: it names the domain of a demo model and gives its training examples, stage by stage.

One file in `recipes` each, and its name in registry.py.
"""

import abc
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from pipelinerl.demo_model.examples import Batch
from pipelinerl.demo_model.local_client import LocalChatClient
from pipelinerl.demo_model.model import new_model
from pipelinerl.domains.base import Domain
from pipelinerl.paths import conf_directories

STAMP = "demo_model.json"  # in a finished model: its fingerprint, and how good it is
UNRELIABLE = "unreliable on purpose"


@dataclass(frozen=True)
class Stage:
    """Supervised steps under one schedule of the learning rate, from nothing and back to it."""

    optimizers: list[torch.optim.Optimizer]
    batches: Iterator[Batch]
    steps: int
    warmup: int
    named: str | None = None  # success is measured at its end, and printed with this name


class Recipe(abc.ABC):
    """How a demo model is made.

    seed: of the examples and the model.
    max_tokens: of an answer.
    context: tokens of the longest conversation.
    evaluation_problems: held-out ones, of which one sample each measures success.
    """

    seed: int
    max_tokens: int
    context: int = 256
    evaluation_problems: int

    @property
    @abc.abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Returns all that determines the model, as JSON. A finished model with the same one is kept."""

    @abc.abstractmethod
    def domain(self) -> Domain:
        """Returns the domain whose training problems the examples are, with the prompts of its rollouts."""

    def initial_model(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        """Returns the model before its first stage."""
        return new_model(tokenizer)

    @abc.abstractmethod
    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        """Yields the stages. Each one is trained before the next one is taken."""


def domain_config(name: str) -> dict[str, Any]:
    files = [conf / "domain" / f"{name}.yaml" for conf in conf_directories()]
    return OmegaConf.to_container(OmegaConf.load(next(file for file in files if file.exists())))


def configured(name: str, seed: int, **changes: Any) -> Domain:
    """The domain of conf/domain/NAME.yaml, as a run of this seed has it."""
    config = OmegaConf.create({"seed": seed, "domain": domain_config(name) | changes})
    return instantiate(config.domain)


def read_stamp(directory: Path) -> dict[str, Any] | None:
    """Returns the stamp of a finished model, or None if the directory holds none."""
    path = directory / STAMP
    return json.loads(path.read_text()) if path.exists() else None
