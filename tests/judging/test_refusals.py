"""What the service, or the launcher, refuses before anything is judged."""

import asyncio

import pytest
from pydantic import ValidationError

from pipelinerl.domains.base import Problem, Verified
from pipelinerl.domains.judges import judging_of
from pipelinerl.errors import PlanError
from pipelinerl.judging.__main__ import JudgingRefusedError, isolation
from pipelinerl.judging.child import JudgingEndedError, judging_service
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.verifiers import build_judge
from pipelinerl.launcher.composing.compose import compose_config


def test_a_level_that_is_required_and_not_to_be_had(monkeypatch):
    monkeypatch.setattr(
        "pipelinerl.judging.__main__.strongest_level", lambda readable: (Level.PROCESS, "no Landlock here")
    )
    assert isolation(JudgingConfig()) == (Level.PROCESS, "no Landlock here")
    for options in ({"require": "sealed"}, {"isolation": "sealed"}):
        with pytest.raises(JudgingRefusedError, match="workers can be process here: no Landlock here"):
            isolation(JudgingConfig(**options))


def test_two_keys_that_contradict_each_other():
    with pytest.raises(ValidationError, match="judging.isolation=process cannot be"):
        JudgingConfig(isolation="process", require="sealed")


def test_a_verifier_that_cannot_be_made_is_named():
    async def scenario(spec: dict):
        async with judging_service(JudgingConfig(isolation="process", verifiers={"mine": spec})):
            raise AssertionError("it has started")

    with pytest.raises(JudgingEndedError, match="verifier mine .nowhere.Mine.: .*No module named 'nowhere'"):
        asyncio.run(scenario({"_target_": "nowhere.Mine"}))


def test_a_class_that_is_no_verifier_is_named():
    with pytest.raises(ValueError, match=r"verifier mine \(pathlib.Path\): .* it makes no .*Verifier"):
        build_judge({"mine": {"_target_": "pathlib.Path"}}, max_characters=9)


def test_a_verifier_without_a_class():
    with pytest.raises(PlanError, match="judging.verifiers.mine needs a _target_"):
        compose_config(["+judging.verifiers.mine.scale=2"])


class Named(Verified):
    name, train_size, heldout_size = "named", 1, 1

    def train_problem(self, index: int) -> Problem:
        return Problem("p", [])

    heldout_problem = train_problem


def test_a_verifier_that_is_named_and_not_configured():
    with pytest.raises(
        PlanError, match="the domain named names the verifier mine: set judging.verifiers.mine"
    ):
        judging_of(JudgingConfig(), Named("mine"))
    configured = JudgingConfig(verifiers={"mine": {"_target_": "a.B"}})
    assert judging_of(configured, Named("mine")).verifiers == {"mine": {"_target_": "a.B"}}
