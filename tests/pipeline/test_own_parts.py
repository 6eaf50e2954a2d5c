"""Parts from outside the project: each is one source file and one config file in the user's directory."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.records import Rollout, Settled
from pipelinerl.jobs import ROOT
from tests.pipeline.runs import MINIATURE, records

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
    command = [sys.executable, str(ROOT / "launch.py"), *small, *overrides]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # for the miniature's domain; parts need none
    done = subprocess.run(command, cwd=directory, text=True, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "latest" / "summary.json").read_text())


def put(directory: Path, source: str, choice: str, config: str) -> None:
    (directory / "my_part.py").write_text(source)
    file = directory / "conf" / f"{choice}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(config)


def test_an_objective(tmp_path):
    put(tmp_path, OBJECTIVE, "objective/plain", "_target_: my_part.Plain\nscale: 2.0\n")
    assert run_from(tmp_path, "objective=plain")["optimizer_steps"] == 3
    lines = (tmp_path / "run" / "metrics" / "trainer.jsonl").read_text().splitlines()
    assert any("my_sum" in json.loads(line) for line in lines)


def test_an_objective_without_a_config_file(tmp_path):
    (tmp_path / "my_part.py").write_text(OBJECTIVE)
    own = ["~objective", "+objective._target_=my_part.Plain", "+objective.scale=1"]
    assert run_from(tmp_path, *own)["optimizer_steps"] == 3


def test_a_filter(tmp_path):
    put(tmp_path, FILTER, "exp/odd", "# @package _global_\nfilters: [{_target_: my_part.EveryOther}]\n")
    run_from(tmp_path, "+exp=odd")
    settled = [r for r in records(tmp_path / "run", "preprocessor_events") if isinstance(r, Settled)]
    odd = [group for r in settled if r.reason == "odd_group" for group in r.group_ids]
    assert odd and all(group % 2 for group in odd)


def test_a_sampler(tmp_path):
    put(tmp_path, SAMPLER, "sampler/favourite", "_target_: my_part.Favourite\nproblem: 7\n")
    run_from(tmp_path, "sampler=favourite")
    assert {r.problem_id for r in records(tmp_path / "run", "rollouts")} == {"train-7"}


def test_a_reward(tmp_path):
    put(tmp_path, REWARD, "exp/brief", "# @package _global_\nrewards: [{_target_: my_part.Brevity}]\n")
    run_from(tmp_path, "+exp=brief")
    rollouts = [r for r in records(tmp_path / "run", "rollouts") if not r.failed]
    assert rollouts
    for rollout in rollouts:
        assert isinstance(rollout, Rollout)
        assert rollout.reward_components["brevity"] == pytest.approx(-0.01 * rollout.sampled_tokens)
        assert rollout.reward == pytest.approx(sum(rollout.reward_components.values()))


def test_the_page_that_writes_an_objective_does_what_it_says(tmp_path):
    page = (ROOT / "docs" / "write-an-objective.md").read_text()
    source, proof = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    put(tmp_path, source, "objective/mine", config)
    (tmp_path / "my_part.py").rename(tmp_path / "my_file.py")
    (tmp_path / "test_my_file.py").write_text(proof)
    commands = re.findall(r"^python \$PROJECT/launch.py (.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for i, command in enumerate(commands[:2]):
        assert run_from(tmp_path, *shlex.split(command), f"run_dir=run{i}")["optimizer_steps"] == 3
    check = [sys.executable, "-m", "pytest", "-q", "test_my_file.py"]
    done = subprocess.run(
        check, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 0 and b"1 passed" in done.stdout
