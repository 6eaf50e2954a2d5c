import asyncio

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from extensions.reasoning_gym.thinking_sums import ThinkingSums
from tests.extensions.reasoning_gym.test_reasoning_gym import CONF, Says


@pytest.fixture(scope="module")
def domain() -> ThinkingSums:
    config = OmegaConf.create({"seed": 0, "domain": OmegaConf.load(CONF / "thinking_sums.yaml")})
    return instantiate(config.domain)


def test_the_problems_are_those_of_the_demo(domain):
    config = OmegaConf.create({"seed": 0, "domain": OmegaConf.load(CONF / "reasoning_gym.yaml")})
    demo = instantiate(config.domain)
    for index in range(20):
        assert domain.train_problem(index) == demo.train_problem(index)
        assert domain.heldout_problem(index) == demo.heldout_problem(index)


@pytest.mark.parametrize("thinking", ["", ".", "." * 12, "7=8"])
def test_thinking_counts_neither_for_nor_against_an_answer(domain, thinking):
    problem = domain.train_problem(0)
    right = problem.data["answer"]
    for answer, success in [(right, True), (str(int(right) + 1), False), ("", False)]:
        attempt = asyncio.run(domain.rollout(Says(domain, f"{thinking}={answer}"), problem))
        assert attempt.success == success and (attempt.reward == 1) == success
        assert attempt.metrics == {"thinking": len(thinking)}


def test_what_is_not_marked_is_no_answer(domain):
    problem = domain.train_problem(0)
    right = problem.data["answer"]
    for text in (right, f"....{right}", "." * 20, f"={right}="):
        assert asyncio.run(domain.rollout(Says(domain, text), problem)).reward == 0
