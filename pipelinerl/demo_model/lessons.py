"""Lessons: training problems of the demo's domain with their solutions, as token batches.

Prompts are exactly those a rollout sends; held-out problems never appear.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipelinerl.domains.base import Domain

DOMAIN_CONFIG = Path(__file__).parents[2] / "conf" / "domain" / "reasoning_gym.yaml"
WRONG_BY = [-11, -10, -2, -1, 1, 2, 10, 11]  # one slip in a column, or in two

Question = tuple[list[dict[str, str]], int]  # messages, answer
Batch = tuple[Tensor, Tensor]  # token ids [B, T] int64; labels [B, T], -100 where there is no loss


def demo_domain(seed: int) -> Domain:
    """The domain of the demo, from the same file that configures the run."""
    config = OmegaConf.create({"seed": seed, "domain": OmegaConf.load(DOMAIN_CONFIG)})
    return instantiate(config.domain)


@dataclass(frozen=True)
class Lesson:
    prompt: list[int]
    answer: int


class Lessons:
    """Endless batches from pools of lessons."""

    def __init__(self, domain: Domain, tokenizer: PreTrainedTokenizerBase, pool_size: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        problems = [domain.train_problem(i) for i in range(pool_size)]
        asked = [(p.messages, int(p.data["answer"])) for p in problems]
        distinct = {messages[-1]["content"]: (messages, answer) for messages, answer in asked}
        self.as_asked = self._lessons(asked)
        self.distinct = self._lessons(list(distinct.values()))

    def _lessons(self, questions: list[Question]) -> list[Lesson]:
        prompts = self._tokenizer.apply_chat_template(
            [messages for messages, _ in questions], add_generation_prompt=True, return_dict=False
        )
        return [Lesson(prompt, answer) for prompt, (_, answer) in zip(prompts, questions, strict=True)]

    def batches(self, pool: list[Lesson], batch_size: int, wrong_share: float = 0.0) -> Iterator[Batch]:
        while True:
            yield self._batch(self._random.choices(pool, k=batch_size), wrong_share)

    def _batch(self, lessons: list[Lesson], wrong_share: float) -> Batch:
        slips = [self._random.choice(WRONG_BY) * (self._random.random() < wrong_share) for _ in lessons]
        end = self._tokenizer.eos_token
        answers = [f"{lesson.answer + slip}{end}" for lesson, slip in zip(lessons, slips, strict=True)]
        solutions = self._tokenizer(answers)["input_ids"]
        length = max(len(x.prompt) + len(s) for x, s in zip(lessons, solutions, strict=True))
        ids = torch.full((len(lessons), length), self._tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for row, (lesson, solution) in enumerate(zip(lessons, solutions, strict=True)):
            start, end = len(lesson.prompt), len(lesson.prompt) + len(solution)
            ids[row, :end] = torch.tensor(lesson.prompt + solution)
            labels[row, start:end] = ids[row, start:end]
        return ids, labels
