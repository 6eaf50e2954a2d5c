"""The examples of the demo models that play a domain's own rollouts, and the registry that names them all."""

import re

import pytest
from hydra.utils import get_class

from extensions.demo.build import make_demo_model
from extensions.demo.examples import IGNORED, Example
from extensions.demo.local_client import LocalChatClient
from extensions.demo.model import new_model
from extensions.demo.prompts import Prompts
from extensions.demo.recipe import Recipe, configured, read_stamp
from extensions.demo.recipes import guessing, word_problems
from extensions.demo.registry import DEMO_MODELS
from extensions.demo.tokenizer import byte_tokenizer
from pipelinerl.launcher.checking.model_source import find_model
from pipelinerl.launcher.composing.choices import choices_of
from pipelinerl.launcher.composing.compose import compose_config

HASTY = guessing.Options(
    batch_size=8, steps=2, shifted_games=20, noisy_games=40, noise_steps=1, evaluation_problems=4
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Prompts:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer = byte_tokenizer(1024)
    tokenizer.save_pretrained(directory)
    return Prompts(tokenizer, directory)


@pytest.fixture(scope="module")
def domain():
    return configured("guessing", seed=0)


@pytest.fixture(scope="module")
def games(domain, prompts) -> guessing.GameExamples:
    return guessing.GameExamples(domain, prompts, HASTY, seed=0)


def decoded(prompts: Prompts, token_ids: list[int]) -> str:
    return prompts.tokenizer.decode(token_ids)


def targets(prompts: Prompts, game: Example) -> list[int]:
    """The numbers that have a loss."""
    text = decoded(prompts, [label for label in game.labels if label != IGNORED])
    return [int(number) for number in text.split("<|end|>")[:-1]]


def test_every_recipe_is_a_name_of_the_configuration():
    assert {*choices_of("model")} >= {*DEMO_MODELS}
    for name, model in DEMO_MODELS.items():
        assert find_model(compose_config([f"model={name}"])).path == str(model.directory)
    assert all(issubclass(get_class(model.recipe), Recipe) for model in DEMO_MODELS.values())
    assert len({model.directory for model in DEMO_MODELS.values()}) == len(DEMO_MODELS)


def test_a_game_has_the_tokens_of_a_rollout_that_says_the_same(domain, games, prompts):
    """Told by the text alone, and put together by the chat template as a whole conversation."""
    for index in (0, 7, 300):
        problem = domain.train_problem(index)
        game = games.clean_game(problem)
        turns = re.findall(r"<\|(user|assistant)\|>([^<]*)", decoded(prompts, game.token_ids))
        messages = [{"role": role, "content": text} for role, text in turns]
        assert messages[0] == problem.messages[0] and messages[-1]["content"] == str(problem.data)
        whole = prompts.tokenizer.apply_chat_template(messages, tokenize=False)
        assert game.token_ids == prompts.tokenizer(whole)["input_ids"]
        assert targets(prompts, game) == [int(m["content"]) for m in messages if m["role"] == "assistant"]
        assert [t for t, label in zip(*game, strict=True) if label != IGNORED] == [
            label for label in game.labels if label != IGNORED
        ]


def test_no_number_that_is_held_out_is_sought_in_an_example(domain, games, prompts):
    heldout = {domain.heldout_problem(index).data for index in range(domain.heldout_size)}
    assert len(heldout) == 128
    found = [games.shifted_game() for _ in range(150)]
    found += [games.clean_game(domain.train_problem(index)) for index in range(0, domain.train_size, 9)]
    numbers = {int(decoded(prompts, game.token_ids).split("<|assistant|>")[-1][:-7]) for game in found}
    assert not heldout & numbers and len(numbers) > 150


def test_the_guessing_model_is_built_and_kept(tmp_path):
    recipe, say = guessing.GuessingRecipe(0, HASTY), []
    built = make_demo_model(tmp_path / "model", recipe, say.append)
    assert read_stamp(tmp_path / "model") == built == make_demo_model(tmp_path / "model", recipe, say.append)
    assert "already holds" in say[-1]


def test_measuring_asks_in_batches_and_sends_the_prompts_of_rollouts(domain, prompts):
    batches = []

    class Right(LocalChatClient):
        """Says what is right half of the time: the middle of 1 to 1024, which is one of the numbers."""

        def _sampled(self, conversations):
            batches.append(conversations)
            return [prompts.ended("512") for _ in conversations]

    numbers = [domain._problem(512), domain._problem(700)]
    assert Right(new_model(prompts.tokenizer), prompts, 5).success(domain, numbers) == 0.5
    assert [len(conversations) for conversations in batches] == [2, *[1] * 10]
    assert decoded(prompts, batches[1][0]) == (
        "<|user|>Guess: 1 to 1024<|assistant|>512<|end|><|user|>higher<|assistant|>"
    )


def test_word_problems_are_asked_as_domain_math_asks_them_and_answered_in_a_box(
    tmp_path, monkeypatch, prompts
):
    monkeypatch.chdir(tmp_path)
    recipe = word_problems.WordProblemsRecipe(0)
    math = recipe.domain()
    problem = math.train_problem(0)
    given, answer = decoded(prompts, word_problems.answered(problem, prompts).token_ids).split(
        "<|assistant|>"
    )
    system, question = (message["content"] for message in problem.messages)
    assert given == f"<|system|>{system}<|user|>{question}" and r"\boxed{}" in system
    assert answer == rf"\boxed{{{problem.data}}}<|end|>"
    assert len(prompts.ended(rf"\boxed{{{problem.data}}}")) <= recipe.max_tokens
    examples = [
        word_problems.answered(p, prompts) for p in map(math.train_problem, range(0, math.train_size, 50))
    ]
    assert max(len(row.token_ids) for row in examples) <= 300
