"""The recipe of the model that adds two numbers: supervised training, then label noise."""

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

WRONG_BY = [-11, -10, -2, -1, 1, 2, 10, 11]  # errors in one or two digits

Messages = list[dict[str, str]]


class Sum(NamedTuple):
    messages: Messages
    answer: int


class Text(NamedTuple):
    """An example as text."""

    messages: Messages
    given: str  # beginning of the solution, without loss
    target: str


Put = Callable[[Messages, int, random.Random], Text]


def plainly(messages: Messages, answer: int, random: random.Random) -> Text:
    """Returns the question with the bare answer as the target."""
    return Text(messages, "", str(answer))


@dataclass(frozen=True)
class Options:
    """Batches come in three phases: mostly distinct problems, the domain's distribution, and label noise."""

    pool_size: int = 60_000  # training problems drawn, of which about 11 000 are distinct
    batch_size: int = 128
    steps: int = 850  # of the first two phases, under one schedule of the learning rate
    # The first phase samples distinct problems uniformly. Few of these are easy, so learning the rule is
    # better than memorizing. A tenth follows the domain's distribution, to retain the easy problems.
    rule_share: float = 0.6
    as_asked_share: float = 0.1
    noise_steps: int = 60
    wrong_share: float = 0.65  # share of noisy solutions that are wrong by a plausible amount
    evaluation_problems: int = 500


class SumsRecipe(Recipe):
    options = Options()
    max_tokens = 8  # the longest answer has four characters and the end token
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
    """Makes endless batches of training problems with solutions. Prompts equal those of rollouts."""

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
