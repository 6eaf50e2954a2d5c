"""The model that finds a number by halving what is left, over the turns of a conversation; then it slips.

Lessons are rollouts of the domain, in which a teacher answers. So their tokens are those of a run.
"""

import asyncio
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pipelinerl.demo_model.examples import NOT_LEARNT, Batch, Lesson, batch_of
from pipelinerl.demo_model.local_client import Pupil
from pipelinerl.demo_model.prompts import Prompts
from pipelinerl.demo_model.recipe import UNRELIABLE, Course, Stage, configured, domain_config
from pipelinerl.demo_model.recipes.sums import WRONG_BY
from pipelinerl.demo_model.training import adamw, muon_and_adamw
from pipelinerl.domains.base import Answer, Problem
from pipelinerl.domains.guessing import Guessing


@dataclass(frozen=True)
class Recipe:
    batch_size: int = 64
    steps: int = 450
    # Games that begin a little beside the middle, and are learnt where few numbers are left. Without them the
    # model remembers the games of the training numbers, and a fifth of the others it never finds.
    shifted_games: int = 1500
    shifted_share: float = 0.25
    farthest_shift: int = 4
    learnt_from: int = 7  # the turn, from 0
    slipping_games: int = 1500
    slip_steps: int = 60
    slip_share: float = 0.25  # of the answers: wrong by a plausible amount
    evaluation_problems: int = 128


class GuessingCourse(Course):
    max_tokens = 5  # four digits and the end

    def __init__(self, seed: int, recipe: Recipe = Recipe()):
        self.seed, self.recipe = seed, recipe
        self.evaluation_problems = recipe.evaluation_problems

    @property
    def made_of(self) -> dict[str, Any]:
        return {"seed": self.seed, "recipe": asdict(self.recipe), "domain": domain_config("guessing")}

    def domain(self) -> Guessing:
        return configured("guessing", self.seed)

    def stages(self, pupil: Pupil, domain: Guessing) -> Iterator[Stage]:
        recipe, lessons = self.recipe, Lessons(domain, pupil.prompts, self.recipe, self.seed)
        yield Stage(muon_and_adamw(pupil.model), lessons.taught(), recipe.steps, warmup=30, named="taught")
        optimizers = adamw(list(pupil.model.parameters()), learning_rate=5e-4)
        yield Stage(optimizers, lessons.slips(), recipe.slip_steps, warmup=5, named=UNRELIABLE)


class Teacher:
    """A chat client that halves what is left of an interval: 1 to `highest`, moved by `shift`.

    slips: what is added to its answers, one after the other; none is after they are used up.
    """

    def __init__(self, prompts: Prompts, highest: int, shift: int = 0, slips: Iterable[int] = ()):
        self._prompts, self._slips = prompts, iter(slips)
        self._low, self._high = 1 + shift, highest + shift
        self._highest, self._said = highest, 0

    async def chat(self, messages: list[dict[str, str]], after: Answer | None = None) -> Answer:
        if messages[-1]["content"] == "higher":
            self._low = self._said + 1
        elif messages[-1]["content"] == "lower":
            self._high = self._said - 1
        guess = (self._low + self._high) // 2 + next(self._slips, 0)
        self._said = min(max(guess, 1), self._highest)
        prompt = self._prompts.of(messages, after)
        return self._prompts.answer(prompt, self._prompts.ended(str(self._said)))


class Lessons:
    """Endless batches of games in which a training number is sought."""

    def __init__(self, domain: Guessing, prompts: Prompts, recipe: Recipe, seed: int):
        self._domain, self._prompts, self._recipe = domain, prompts, recipe
        self._random = random.Random(seed)
        self._problems = [domain.train_problem(index) for index in range(domain.train_size)]

    def taught(self) -> Iterator[Batch]:
        recipe = self._recipe
        plain = [self.played(problem) for problem in self._problems]
        shifted = [self.shifted() for _ in range(recipe.shifted_games)]
        size = round(recipe.batch_size * recipe.shifted_share)
        while True:
            yield self._batch(
                self._random.choices(plain, k=recipe.batch_size - size)
                + self._random.choices(shifted, k=size)
            )

    def slips(self) -> Iterator[Batch]:
        pool = [self.slipping() for _ in range(self._recipe.slipping_games)]
        while True:
            yield self._batch(self._random.choices(pool, k=self._recipe.batch_size))

    def played(self, problem: Problem) -> Lesson:
        return self._lesson(problem, Teacher(self._prompts, self._domain.highest))

    def shifted(self) -> Lesson:
        recipe, highest = self._recipe, self._domain.highest
        far = [p for p in self._problems if recipe.farthest_shift < p.data <= highest - recipe.farthest_shift]
        shift = self._random.choice([-1, 1]) * self._random.randint(1, recipe.farthest_shift)
        teacher = Teacher(self._prompts, highest, shift)
        return self._lesson(self._random.choice(far), teacher, learnt_from=recipe.learnt_from)

    def slipping(self) -> Lesson:
        """Until the first slip: what follows one is for RL to find."""
        before = next(n for n in itertools.count() if self._random.random() < self._recipe.slip_share)
        slips = [*[0] * before, self._random.choice(WRONG_BY)]
        teacher = Teacher(self._prompts, self._domain.highest, slips=slips)
        return self._lesson(self._random.choice(self._problems), teacher, answers=before + 1)

    def _lesson(
        self, problem: Problem, teacher: Teacher, learnt_from: int = 0, answers: int | None = None
    ) -> Lesson:
        completions = asyncio.run(self._domain.rollout(teacher, problem)).completions[:answers]
        last = completions[-1]
        token_ids = [*last.prompt_token_ids.tolist(), *last.token_ids.tolist()]
        labels = [NOT_LEARNT] * len(token_ids)
        for completion in completions[learnt_from:]:
            start = len(completion.prompt_token_ids)
            labels[start : start + len(completion.token_ids)] = completion.token_ids.tolist()
        return Lesson(token_ids, labels)

    def _batch(self, games: list[Lesson]) -> Batch:
        return batch_of(games, self._prompts.tokenizer.pad_token_id)
