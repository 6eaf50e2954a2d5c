"""The demo's own model: sums of two numbers, until it solves nearly all; then label noise."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from extensions.demo.examples import Batch, batch_of, example
from extensions.demo.local_client import LocalChatClient
from extensions.demo.recipe import UNRELIABLE, Recipe, Stage
from extensions.demo.training import adamw, muon_and_adamw
from pipelinerl.domains.base import Domain

WRONG_BY = [-11, -10, -2, -1, 1, 2, 10, 11]  # an error in one column, or in two

Messages = list[dict[str, str]]


class Sum(NamedTuple):
    messages: Messages
    answer: int


class Text(NamedTuple):
    messages: Messages
    given: str  # start of the solution, without a loss
    target: str


Put = Callable[[Messages, int, random.Random], Text]


def plainly(messages: Messages, answer: int, random: random.Random) -> Text:
    """Returns the question and the answer, unchanged."""
    return Text(messages, "", str(answer))


@dataclass(frozen=True)
class Options:
    """Three kinds of batches: the rule, the task as asked, and noise that makes the model unreliable."""

    pool_size: int = 60_000  # training problems drawn; about 11 000 distinct ones
    batch_size: int = 128
    steps: int = 850  # of the first two kinds, under one schedule of the learning rate
    # The first kind draws distinct problems about equally often. Few of them are easy, so the model learns
    # the rule. A tenth is drawn as asked, so that the model does not forget the easy ones.
    rule_share: float = 0.6
    as_asked_share: float = 0.1
    noise_steps: int = 60
    wrong_share: float = 0.65  # share of the noisy solutions that are wrong by a plausible amount
    evaluation_problems: int = 500


class SumsRecipe(Recipe):
    options = Options()
    max_tokens = 8  # the longest answer has four characters and the end
    asked_as = "reasoning_gym"

    def stages(self, client: LocalChatClient, domain: Domain) -> Iterator[Stage]:
        options = self.options
        examples = self.examples(client, domain)
        mixed_in = int(len(examples.distinct) * options.as_asked_share / (1 - options.as_asked_share))
        rule = examples.batches(examples.distinct + examples.as_asked[:mixed_in], options.batch_size)
        task = examples.batches(examples.as_asked, options.batch_size)
        batches = itertools.chain(itertools.islice(rule, int(options.rule_share * options.steps)), task)
        yield Stage(muon_and_adamw(client.model), batches, options.steps, warmup=50, named="supervised")
        yield self.noise_stage(client, examples, plainly)

    def examples(self, client: LocalChatClient, domain: Domain) -> "SumExamples":
        return SumExamples(domain, client.prompts.tokenizer, self.options.pool_size, self.seed)

    def noise_stage(self, client: LocalChatClient, examples: "SumExamples", put: Put) -> Stage:
        options = self.options
        batches = examples.batches(examples.as_asked, options.batch_size, put, options.wrong_share)
        optimizers = adamw(list(client.model.parameters()), learning_rate=5e-4)
        return Stage(optimizers, batches, options.noise_steps, warmup=5, named=UNRELIABLE)


class SumExamples:
    """Endless batches of training problems with their solutions, with the prompts of rollouts."""

    def __init__(self, domain: Domain, tokenizer: PreTrainedTokenizerBase, pool_size: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        problems = [domain.train_problem(i) for i in range(pool_size)]
        self.as_asked = [Sum(p.messages, int(p.data["answer"])) for p in problems]
        self.distinct = list({asked.messages[-1]["content"]: asked for asked in self.as_asked}.values())

    def batches(
        self, pool: list[Sum], batch_size: int, put: Put = plainly, wrong_share: float = 0.0
    ) -> Iterator[Batch]:
        while True:
            yield self._batch(self._random.choices(pool, k=batch_size), put, wrong_share)

    def _batch(self, sums: list[Sum], put: Put, wrong_share: float) -> Batch:
        noise = [self._random.choice(WRONG_BY) * (self._random.random() < wrong_share) for _ in sums]
        texts = [put(x.messages, x.answer + s, self._random) for x, s in zip(sums, noise, strict=True)]
        prompts = self._tokenizer.apply_chat_template(
            [text.messages for text in texts], add_generation_prompt=True, tokenize=False
        )
        end = self._tokenizer.eos_token
        starts = self._tokens([p + text.given for p, text in zip(prompts, texts, strict=True)])
        solutions = self._tokens([text.target + end for text in texts])
        return batch_of(list(map(example, starts, solutions)), self._tokenizer.pad_token_id)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]
