"""The recipe of the model that writes expressions: supervised training, then label noise."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from extensions.demo.examples import Batch, batch_of, example
from extensions.demo.local_client import LocalChatClient
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import UNRELIABLE, Recipe, Stage
from extensions.demo.recipes.sums import WRONG_BY
from extensions.demo.training import adamw, muon_and_adamw
from pipelinerl.domains.base import Domain


@dataclass(frozen=True)
class Options:
    batch_size: int = 128
    steps: int = 250
    noise_steps: int = 60
    wrong_share: float = 0.65  # share of answers whose slope or constant is wrong by a plausible amount
    evaluation_problems: int = 256


class ExpressionsRecipe(Recipe):
    options = Options()
    max_tokens = 10  # two digits, `*x+`, two digits and the end token
    asked_as = "expressions"

    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        options = self.options
        examples = ExpressionExamples(domain, client.prompts, self.seed)
        batches = examples.batches(options.batch_size)
        yield Stage(muon_and_adamw(client.model), batches, options.steps, warmup=50, named="supervised")
        noisy = examples.batches(options.batch_size, options.wrong_share)
        optimizers = adamw(list(client.model.parameters()), learning_rate=5e-4)
        yield Stage(optimizers, noisy, options.noise_steps, warmup=5, named=UNRELIABLE)


class ExpressionExamples:
    """Makes endless batches of training problems with answers. `domain` tells slope and constant of each."""

    def __init__(self, domain: Any, prompts: Prompts, seed: int):
        self._random = random.Random(seed)
        self._prompts = prompts
        self._pool = [
            (prompts.of(domain.train_problem(index).messages), domain.train_expression(index))
            for index in range(domain.train_size)
        ]

    def batches(self, batch_size: int, wrong_share: float = 0.0) -> Iterator[Batch]:
        while True:
            drawn = self._random.choices(self._pool, k=batch_size)
            rows = [example(prompt, self._answer(*pair, wrong_share)) for prompt, pair in drawn]
            yield batch_of(rows, self._prompts.tokenizer.pad_token_id)

    def _answer(self, slope: int, constant: int, wrong_share: float) -> list[int]:
        if self._random.random() < wrong_share:
            by = self._random.choice(WRONG_BY)
            if self._random.random() < 0.5:
                slope = abs(slope + by)
            else:
                constant = abs(constant + by)
        return self._prompts.ended(f"{slope}*x+{constant}")
