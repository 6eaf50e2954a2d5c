"""The interface of recipes, which give the domain and the training stages of a demo model.

A recipe is one file in `recipes`, and an entry in registry.py.
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

STAMP = "demo_model.json"  # file of a finished model, with its fingerprint and success
UNRELIABLE = "unreliable on purpose"


@dataclass(frozen=True)
class Stage:
    """Supervised steps under one schedule of the learning rate."""

    optimizers: list[torch.optim.Optimizer]
    batches: Iterator[Batch]
    steps: int
    warmup: int
    named: str | None = None  # name with which its success is printed; None = it is not measured


class Recipe(abc.ABC):
    """Base class of recipes.

    options: a dataclass; success is measured by one sample at each of its `evaluation_problems`.
    max_tokens: largest number of tokens of an answer.
    context: tokens of the longest conversation.
    asked_as: name of the domain's file in conf.
    """

    options: Any
    max_tokens: int
    context: int = 256
    asked_as: str

    def __init__(self, seed: int, options: Any = None):
        self.seed = seed
        self.options = options or self.options

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The inputs that determine the model, as JSON."""
        return {"seed": self.seed, "options": asdict(self.options), "domain": domain_config(self.asked_as)}

    def domain(self) -> Domain:
        """Returns the domain whose training problems are the examples."""
        return configured(self.asked_as, self.seed)

    def initial_model(self, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
        return new_model(tokenizer)

    @abc.abstractmethod
    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        """Yields the stages. Each is trained before the next one is requested."""


def domain_config(name: str) -> dict[str, Any]:
    files = [conf / "domain" / f"{name}.yaml" for conf in conf_directories()]
    return OmegaConf.to_container(OmegaConf.load(next(file for file in files if file.exists())))


def configured(name: str, seed: int, **changes: Any) -> Domain:
    """Returns the domain of conf/domain/NAME.yaml in a run with this seed."""
    config = OmegaConf.create({"seed": seed, "domain": domain_config(name) | changes})
    return instantiate(config.domain)


def read_stamp(directory: Path) -> dict[str, Any] | None:
    """Returns the stamp of a finished model, or None if the directory has none."""
    path = directory / STAMP
    return json.loads(path.read_text()) if path.exists() else None
