"""Tutorials, executed as they stand. Their runs are made small by overrides."""

import json
import re

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from contracts.records import Rollout
from pipelinerl.paths import ROOT
from tests.pages import blocks, commands, execute, run
from tests.pipeline.runs import MINIATURE, finish, launch, records, run_to_the_end

SMALL = (*MINIATURE, "max_steps=3")


def test_your_first_objective(tmp_path):
    execute("write-an-objective", tmp_path, *SMALL)


@pytest.mark.long
def test_train_on_gpus(tmp_path):
    execute("tutorial-gpus", tmp_path)


@pytest.mark.long
def test_read_a_run(tmp_path):
    run_to_the_end(tmp_path / "runs" / "latest", "max_steps=5", "++domain.agreeing=0.3")
    execute("tutorial-read-a-run", tmp_path)


@pytest.mark.long
def test_your_own_environment(tmp_path):
    make_tiny_model(tmp_path / "model")
    small = (f"model.path={tmp_path}/model", "max_steps=2", "batch_size=16", "filters=[]", "eval.problems=8")
    execute("tutorial-environment", tmp_path, *small)


@pytest.mark.long
def test_a_run_trains_through_the_adapter_that_a_page_writes(tmp_path):
    make_tiny_model(tmp_path / "model")
    small = (f"model.path={tmp_path}/model", "batch_size=16", "filters=[]", "eval.problems=8")
    written = [words for _, block in blocks("write-an-inference-adapter") for words in commands(block)]
    (launch,) = [words for words in written if words[:2] == ["python", "launch.py"]]
    run([*launch, f"run_dir={tmp_path}/run", *small], ROOT, ())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["optimizer_steps"] == 2


def test_the_page_on_domains_shows_a_verifier_that_works(tmp_path):
    page = (ROOT / "docs" / "extend.md").read_text()
    of_verifier = page.split("### A verifier")[1].split("### ")[0]
    source = "\n".join(re.findall(r"```python\n(.*?)```", of_verifier, re.DOTALL))
    (tmp_path / "my_file.py").write_text(source)
    (domain,) = re.findall(r"^python \$PROJECT/launch.py ~domain \+(.*)$", of_verifier, re.MULTILINE)
    status, err = finish(launch(tmp_path / "run", *SMALL, domain, "filters=[]", directory=tmp_path))
    assert status == 0, err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["judging_isolation"] in ("process", "sealed")
    judged = [r for r in records(tmp_path / "run", "rollouts") if isinstance(r, Rollout)]
    assert judged and not any(r.failed for r in judged)
    assert {"right", "brief"} == {name for r in judged for name in r.reward_components}
