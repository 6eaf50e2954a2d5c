"""The model that finds a number by binary search, over the turns of a conversation; then label noise.

The examples are rollouts of the domain with a client that searches, so their tokens are those of a run.
"""

import asyncio
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from extensions.demo.domains.guessing import Guessing
from extensions.demo.examples import IGNORED, Batch, Example, batch_of
from extensions.demo.local_client import LocalChatClient
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import UNRELIABLE, Recipe, Stage
from extensions.demo.recipes.sums import WRONG_BY
from extensions.demo.training import adamw, muon_and_adamw
from pipelinerl.domains.base import Answer, Problem


@dataclass(frozen=True)
class Options:
    batch_size: int = 64
    steps: int = 450
    # Games that start a little off the middle, with a loss on the last turns. Without them the model
    # memorises the games of the training numbers, and does not find a fifth of the others.
    shifted_games: int = 1500
    shifted_share: float = 0.25
    farthest_shift: int = 4
    targets_from: int = 7  # the turn, from 0
    noisy_games: int = 1500
    noise_steps: int = 60
    noise_share: float = 0.25  # share of the answers that are wrong by a plausible amount
    evaluation_problems: int = 128


class GuessingRecipe(Recipe):
    options = Options()
    max_tokens = 5  # four digits and the end
    asked_as = "guessing"

    def stages(self, client: LocalChatClient, domain: Guessing) -> Iterator[Stage]:
        options = self.options
        examples = GameExamples(domain, client.prompts, self.options, self.seed)
        yield Stage(
            muon_and_adamw(client.model),
            examples.clean_batches(),
            options.steps,
            warmup=30,
            named="supervised",
        )
        optimizers = adamw(list(client.model.parameters()), learning_rate=5e-4)
        yield Stage(optimizers, examples.noisy_batches(), options.noise_steps, warmup=5, named=UNRELIABLE)


class HalvingClient:
    """A chat client that makes a binary search in 1 to `highest`, moved by `shift`.

    noise: numbers added to the first answers; later answers are exact.
    """

    def __init__(self, prompts: Prompts, highest: int, shift: int = 0, noise: Iterable[int] = ()):
        self._prompts = prompts
        self._noise = iter(noise)
        self._low = 1 + shift
        self._high = highest + shift
        self._highest = highest
        self._guess = 0

    async def chat(self, messages: list[dict[str, str]], after: Answer | None = None) -> Answer:
        if messages[-1]["content"] == "higher":
            self._low = self._guess + 1
        elif messages[-1]["content"] == "lower":
            self._high = self._guess - 1
        guess = (self._low + self._high) // 2 + next(self._noise, 0)
        self._guess = min(max(guess, 1), self._highest)
        prompt = self._prompts.of(messages, after)
        return self._prompts.answer(prompt, self._prompts.ended(str(self._guess)))


class GameExamples:
    """Endless batches of games at the training problems."""

    def __init__(self, domain: Guessing, prompts: Prompts, options: Options, seed: int):
        self._domain = domain
        self._prompts = prompts
        self._options = options
        self._random = random.Random(seed)
        self._problems = [domain.train_problem(index) for index in range(domain.train_size)]

    def clean_batches(self) -> Iterator[Batch]:
        options = self._options
        plain = [self.clean_game(problem) for problem in self._problems]
        shifted = [self.shifted_game() for _ in range(options.shifted_games)]
        size = round(options.batch_size * options.shifted_share)
        while True:
            yield self._batch(
                self._random.choices(plain, k=options.batch_size - size)
                + self._random.choices(shifted, k=size)
            )

    def noisy_batches(self) -> Iterator[Batch]:
        pool = [self.noisy_game() for _ in range(self._options.noisy_games)]
        while True:
            yield self._batch(self._random.choices(pool, k=self._options.batch_size))

    def clean_game(self, problem: Problem) -> Example:
        return self._example(problem, HalvingClient(self._prompts, self._domain.highest))

    def shifted_game(self) -> Example:
        options = self._options
        highest = self._domain.highest
        far = [
            p for p in self._problems if options.farthest_shift < p.data <= highest - options.farthest_shift
        ]
        shift = self._random.choice([-1, 1]) * self._random.randint(1, options.farthest_shift)
        player = HalvingClient(self._prompts, highest, shift)
        return self._example(self._random.choice(far), player, targets_from=options.targets_from)

    def noisy_game(self) -> Example:
        """Returns a game up to its first wrong answer. RL has to learn how to continue."""
        before = next(n for n in itertools.count() if self._random.random() < self._options.noise_share)
        noise = [*[0] * before, self._random.choice(WRONG_BY)]
        player = HalvingClient(self._prompts, self._domain.highest, noise=noise)
        return self._example(self._random.choice(self._problems), player, answers=before + 1)

    def _example(
        self, problem: Problem, player: HalvingClient, targets_from: int = 0, answers: int | None = None
    ) -> Example:
        completions = asyncio.run(self._domain.rollout(player, problem)).completions[:answers]
        last = completions[-1]
        token_ids = [*last.prompt_token_ids.tolist(), *last.token_ids.tolist()]
        labels = [IGNORED] * len(token_ids)
        for completion in completions[targets_from:]:
            start = len(completion.prompt_token_ids)
            labels[start : start + len(completion.token_ids)] = completion.token_ids.tolist()
        return Example(token_ids, labels)

    def _batch(self, games: list[Example]) -> Batch:
        return batch_of(games, self._prompts.tokenizer.pad_token_id)
