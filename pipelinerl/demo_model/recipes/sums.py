"""The demo's own model: sums of two numbers, until it solves nearly all; then slips."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from pipelinerl.demo_model.examples import Batch, batch_of, lesson
from pipelinerl.demo_model.local_client import Pupil
from pipelinerl.demo_model.recipe import CONF, UNRELIABLE, Course, Stage, configured
from pipelinerl.demo_model.training import adamw, muon_and_adamw
from pipelinerl.domains.reasoning_gym import ReasoningGym

WRONG_BY = [-11, -10, -2, -1, 1, 2, 10, 11]  # one slip in a column, or in two

Messages = list[dict[str, str]]


class Sum(NamedTuple):
    messages: Messages
    answer: int


class Text(NamedTuple):
    """A lesson in words."""

    messages: Messages
    given: str  # how the solution begins, where that is not to be learnt
    learnt: str


Put = Callable[[Messages, int, random.Random], Text]


def plainly(messages: Messages, answer: int, random: random.Random) -> Text:
    """The question as it is, and the answer alone."""
    return Text(messages, "", str(answer))


@dataclass(frozen=True)
class Recipe:
    """Three lessons: the rule, the task as it is asked, and the slips that make the model unreliable."""

    pool_size: int = 60_000  # training problems drawn; about 11 000 distinct ones
    batch_size: int = 128
    steps: int = 850  # of the first two lessons, under one schedule of the learning rate
    # The first lesson asks distinct problems about equally often: few of them are easy, so the rule pays
    # more than remembering. A tenth is as asked, so that the easy ones are not forgotten.
    rule_share: float = 0.6
    as_asked_share: float = 0.1
    slip_steps: int = 60
    wrong_share: float = 0.65  # of the slips' solutions: wrong by a plausible amount
    evaluation_problems: int = 500


RECIPE = Recipe()


class Sums(Course):
    max_tokens = 8  # the longest answer has four characters and the end
    asked_as = "reasoning_gym"  # the domain, by its file in conf

    def __init__(self, seed: int, recipe: Recipe = RECIPE):
        self.seed, self.recipe = seed, recipe
        self.evaluation_problems = recipe.evaluation_problems

    @property
    def made_of(self) -> dict[str, Any]:
        domain = (CONF / f"{self.asked_as}.yaml").read_text()
        return {"seed": self.seed, "recipe": asdict(self.recipe), "domain": domain}

    def domain(self) -> ReasoningGym:
        return configured(self.asked_as, self.seed)

    def stages(self, pupil: Pupil, domain: ReasoningGym) -> Iterator[Stage]:
        recipe, lessons = self.recipe, self.lessons(pupil, domain)
        mixed_in = int(len(lessons.distinct) * recipe.as_asked_share / (1 - recipe.as_asked_share))
        rule = lessons.batches(lessons.distinct + lessons.as_asked[:mixed_in], recipe.batch_size)
        task = lessons.batches(lessons.as_asked, recipe.batch_size)
        batches = itertools.chain(itertools.islice(rule, int(recipe.rule_share * recipe.steps)), task)
        yield Stage(muon_and_adamw(pupil.model), batches, recipe.steps, warmup=50, named="taught")
        yield self.slips(pupil, lessons, plainly)

    def lessons(self, pupil: Pupil, domain: ReasoningGym) -> "Lessons":
        return Lessons(domain, pupil.prompts.tokenizer, self.recipe.pool_size, self.seed)

    def slips(self, pupil: Pupil, lessons: "Lessons", put: Put) -> Stage:
        recipe = self.recipe
        batches = lessons.batches(lessons.as_asked, recipe.batch_size, put, recipe.wrong_share)
        optimizers = adamw(list(pupil.model.parameters()), learning_rate=5e-4)
        return Stage(optimizers, batches, recipe.slip_steps, warmup=5, named=UNRELIABLE)


class Lessons:
    """Endless batches of training problems with their solutions; prompts are those that a rollout sends."""

    def __init__(
        self, domain: ReasoningGym, tokenizer: PreTrainedTokenizerBase, pool_size: int, seed: int
    ) -> None:
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
        slips = [self._random.choice(WRONG_BY) * (self._random.random() < wrong_share) for _ in sums]
        texts = [put(x.messages, x.answer + s, self._random) for x, s in zip(sums, slips, strict=True)]
        prompts = self._tokenizer.apply_chat_template(
            [text.messages for text in texts], add_generation_prompt=True, tokenize=False
        )
        end = self._tokenizer.eos_token
        starts = self._tokens([p + text.given for p, text in zip(prompts, texts, strict=True)])
        solutions = self._tokens([text.learnt + end for text in texts])
        return batch_of(list(map(lesson, starts, solutions)), self._tokenizer.pad_token_id)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer(texts, add_special_tokens=False)["input_ids"]
