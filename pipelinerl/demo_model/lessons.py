"""Lessons: training problems of the demo's domain with their solutions, as token batches.

Prompts are exactly those a rollout sends; held-out problems never appear.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from pipelinerl.demo_model.phrasing import PLAIN, Messages, Plain, Put
from pipelinerl.domains.reasoning_gym import ReasoningGym

WRONG_BY = [-11, -10, -2, -1, 1, 2, 10, 11]  # one slip in a column, or in two

Batch = tuple[Tensor, Tensor]  # token ids [B, T] int64; labels [B, T], -100 where there is no loss


class Lesson(NamedTuple):
    messages: Messages
    answer: int


def demo_domain(seed: int, phrasing: Plain = PLAIN) -> ReasoningGym:
    """The domain of the demo, from the same file that configures the run."""
    config = OmegaConf.create({"seed": seed, "domain": OmegaConf.load(phrasing.domain_config)})
    return instantiate(config.domain)


class Lessons:
    """Endless batches from pools of lessons."""

    def __init__(
        self, domain: ReasoningGym, tokenizer: PreTrainedTokenizerBase, pool_size: int, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        problems = [domain.train_problem(i) for i in range(pool_size)]
        self.as_asked = [Lesson(p.messages, int(p.data["answer"])) for p in problems]
        self.distinct = list({lesson.messages[-1]["content"]: lesson for lesson in self.as_asked}.values())

    def batches(
        self, pool: list[Lesson], batch_size: int, put: Put = PLAIN.taught, wrong_share: float = 0.0
    ) -> Iterator[Batch]:
        while True:
            yield self._batch(self._random.choices(pool, k=batch_size), put, wrong_share)

    def _batch(self, lessons: list[Lesson], put: Put, wrong_share: float) -> Batch:
        slips = [self._random.choice(WRONG_BY) * (self._random.random() < wrong_share) for _ in lessons]
        texts = [put(x.messages, x.answer + s, self._random) for x, s in zip(lessons, slips, strict=True)]
        prompts = self._tokenizer.apply_chat_template(
            [text.messages for text in texts], add_generation_prompt=True, tokenize=False
        )
        end = self._tokenizer.eos_token
        starts = self._tokens([p + text.given for p, text in zip(prompts, texts, strict=True)])
        solutions = self._tokens([text.learnt + end for text in texts])
        length = max(len(a) + len(s) for a, s in zip(starts, solutions, strict=True))
        ids = torch.full((len(lessons), length), self._tokenizer.pad_token_id)
        labels = torch.full_like(ids, -100)
        for row, (start, solution) in enumerate(zip(starts, solutions, strict=True)):
            whole = len(start) + len(solution)
            ids[row, :whole] = torch.tensor(start + solution)
            labels[row, len(start) : whole] = ids[row, len(start) : whole]
        return ids, labels

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]
