"""Parts from outside the project: each is one source file and one config file in the user's directory."""

import json
import os
import re
from pathlib import Path

import pytest

from contracts.records import Rollout, Settled
from pipelinerl.paths import ROOT
from tests.forked import Forked
from tests.pipeline.runs import MINIATURE, finish, records

OBJECTIVE = """
from pipelinerl.objectives.base import log_ratio


class Plain:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, scores, batch):
        ratio = log_ratio(scores, batch).exp()
        return -self.scale * (ratio * batch.advantages * batch.loss_weights).sum(), {"my_sum": ratio.sum()}
"""
FILTER = """
import numpy as np


class EveryOther:
    reason = "odd_group"

    def __call__(self, rollouts, advantages):
        return np.full(len(rollouts), rollouts[0].group_id % 2 == 0)
"""
SAMPLER = """
from pipelinerl.samplers.base import Sampler


class Favourite(Sampler):
    def __init__(self, domain, seed, problem):
        super().__init__(domain, seed)
        self.problem, self.seen = problem, 0

    def next(self, version):
        return self.problem

    def observe(self, problem, success):
        self.seen += 1

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]
"""
REWARD = """
import numpy as np


class Brevity:
    name = "brevity"

    def __call__(self, rollouts, version):
        return np.array([-0.01 * rollout.sampled_tokens for rollout in rollouts])
"""


def run_from(directory: Path, *overrides: str) -> dict:
    small = *MINIATURE, "max_steps=3", "run_dir=run"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # for the miniature's domain; parts need none
    command = (str(ROOT / "launch.py"), *small, *overrides)
    status, err = finish(Forked(*command, environment=environment, directory=directory))
    assert status == 0, err
    return json.loads((directory / "latest" / "summary.json").read_text())


def put(directory: Path, part: str, source: str, choice: str, config: str) -> None:
    (directory / f"{part}.py").write_text(source)
    file = directory / "conf" / f"{choice}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(config)


@pytest.fixture(scope="module")
def own_run(tmp_path_factory) -> Path:
    """A run with a part of each kind that is its user's own."""
    own = tmp_path_factory.mktemp("own")
    put(own, "my_objective", OBJECTIVE, "objective/plain", "_target_: my_objective.Plain\nscale: 2.0\n")
    put(own, "my_sampler", SAMPLER, "sampler/favourite", "_target_: my_sampler.Favourite\nproblem: 7\n")
    parts = "filters: [{_target_: my_filter.EveryOther}]\nrewards: [{_target_: my_reward.Brevity}]\n"
    put(own, "my_filter", FILTER, "exp/mine", f"# @package _global_\n{parts}")
    (own / "my_reward.py").write_text(REWARD)
    assert run_from(own, "+exp=mine", "objective=plain", "sampler=favourite")["optimizer_steps"] == 3
    return own / "run"


def test_an_objective(own_run):
    lines = (own_run / "metrics" / "trainer.jsonl").read_text().splitlines()
    assert any("my_sum" in json.loads(line) for line in lines)


def test_a_filter(own_run):
    settled = [r for r in records(own_run, "preprocessor_events") if isinstance(r, Settled)]
    odd = [group for r in settled if r.reason == "odd_group" for group in r.group_ids]
    assert odd and all(group % 2 for group in odd)


def test_a_sampler(own_run):
    assert {r.problem_id for r in records(own_run, "rollouts")} == {"train-7"}


def test_a_reward(own_run):
    rollouts = [r for r in records(own_run, "rollouts") if not r.failed]
    assert rollouts
    for rollout in rollouts:
        assert isinstance(rollout, Rollout)
        assert rollout.reward_components["brevity"] == pytest.approx(-0.01 * rollout.sampled_tokens)
        assert rollout.reward == pytest.approx(sum(rollout.reward_components.values()))


def test_the_page_on_domains_shows_a_verifier_that_works(tmp_path):
    page = (ROOT / "docs" / "extend.md").read_text()
    of_verifier = page.split("### A verifier")[1].split("### ")[0]
    source = "\n".join(re.findall(r"```python\n(.*?)```", of_verifier, re.DOTALL))
    (tmp_path / "my_file.py").write_text(source)
    (domain,) = re.findall(r"^python \$PROJECT/launch.py ~domain \+(.*)$", of_verifier, re.MULTILINE)
    summary = run_from(tmp_path, domain, "filters=[]")
    assert summary["judging_isolation"] in ("process", "sealed")
    judged = [r for r in records(tmp_path / "run", "rollouts") if isinstance(r, Rollout)]
    assert judged and not any(r.failed for r in judged)
    assert {"right", "brief"} == {name for r in judged for name in r.reward_components}
