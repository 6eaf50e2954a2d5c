"""What a recipe is: it names the domain of a demo model and gives its training examples, stage by stage.

One file in `recipes` each, and its name in registry.py.
"""

import abc
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

from extensions.demo.examples import Batch
from extensions.demo.local_client import LocalChatClient
from extensions.demo.model import new_model
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

    options: a dataclass. One sample at each of its `evaluation_problems`, held out, measures success.
    max_tokens: of an answer.
    context: tokens of the longest conversation.
    asked_as: the domain, by the name of its file in conf.
    """

    options: Any
    max_tokens: int
    context: int = 256
    asked_as: str

    def __init__(self, seed: int, options: Any = None):
        self.seed = seed  # of the examples and the model
        self.options = options or self.options

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Returns all that determines the model, as JSON. A finished model with the same one is kept."""
        return {"seed": self.seed, "options": asdict(self.options), "domain": domain_config(self.asked_as)}

    def domain(self) -> Domain:
        """Returns the domain whose training problems the examples are, with the prompts of its rollouts."""
        return configured(self.asked_as, self.seed)

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
