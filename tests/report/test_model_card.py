"""The card of an exported model: what it says, what it leaves out, and that no export depends on it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from contracts.records import Evaluated, SetResult
from pipelinerl.config import Component, ResolvedModel, ResolvedRun, load_config
from pipelinerl.paths import ROOT
from pipelinerl.report.model_card import write_model_card

BASE = ResolvedModel(path="/cache/x", hub="org/base")
RECORDED = ROOT / "tests" / "data" / "recorded_run"


def config_of(**changes: object) -> ResolvedRun:
    return load_config(RECORDED).model_copy(update=changes)


def component(target: str, **options: object) -> Component:
    return Component.model_validate({"_target_": target, **options})


def evaluated(version: int, success: float, name: str = "sums") -> Evaluated:
    result = SetResult(name=name, problems=16, attempts=4, success=success)
    versions = {"version": version, "first_version": version, "last_version": version}
    return Evaluated(problems=16, success=success, sets=[result], **versions)


def card_of(directory: Path, config: ResolvedRun, *results: Evaluated) -> ModelCard:
    """Returns the card of version 8 as it is read again."""
    write_model_card(directory, config, 8, results)
    return ModelCard.load(directory / "README.md")


def row_of(card: ModelCard, key: str) -> list[str]:
    """Returns the cells of a row of one of the card's tables."""
    (line,) = [line for line in card.text.splitlines() if line.startswith(f"| {key} |")]
    return [cell.strip() for cell in line.strip("|").split(" |")][1:]


def test_it_says_how_the_model_was_trained_and_what_it_can_do(tmp_path):
    config = config_of(model=BASE)
    card = card_of(
        tmp_path, config, evaluated(0, 0.25), evaluated(4, 0.75), evaluated(8, 0.5), evaluated(9, 1)
    )
    assert card.data.base_model == "org/base"
    data = card.data.to_dict()
    assert data["library_name"] == "transformers" and data["pipeline_tag"] == "text-generation"
    assert card.data.tags == ["reinforcement-learning", "pipelinerl"]
    assert card.text.startswith("\n# org/base, version 8\n") and "after 8 optimizer steps" in card.text
    results = ["`16`", "`avg@4`", "`0.250 (v0)`", "`0.750 (v4)`", "`0.500 (v8)`"]
    assert row_of(card, "`sums`") == results
    assert row_of(card, "objective") == [
        "`pipelinerl.objectives.reinforce.Reinforce(max_importance_weight=5.0)`"
    ]
    assert row_of(card, "optimizer.lr") == ["`0.06`"] and row_of(card, "batch_size") == ["`32`"]
    assert row_of(card, "domain") == ["`tests.letters_domain.LettersDomain()`"]
    assert "None is recorded." in card_of(tmp_path, config, evaluated(9, 1)).text


def test_it_names_no_path_of_the_machine_and_no_secret(tmp_path):
    private = {
        "path": "/home/me/data.jsonl",
        "files": ["~/a.json", "file:///home/me/b.json", "openai/gsm8k"],
        "where": {"url": "http://me:pass@host/x", "prompt": "see /home/me/c", "size": 3},
        "api_key": "sk-123",
        "max_tokens": 7,
        "task": "chain_sum",
    }
    config = config_of(
        model=ResolvedModel(path="/home/me/models/tiny"), domain=component("my.Domain", **private)
    )
    card = card_of(tmp_path, config)
    assert row_of(card, "domain") == [
        "`my.Domain(path=…, files=[…, …, openai/gsm8k], where={url: …, prompt: …, size: 3}, api_key=…, "
        "max_tokens=7, task=chain_sum)`"
    ]
    assert card.data.base_model is None and "# tiny, version 8" in card.text
    assert not [word for word in ("/home", "~/", "sk-123", "pass", "host") if word in str(card)]


def test_hostile_names_stay_in_their_place(tmp_path):
    config = config_of(
        model=ResolvedModel(path="/x", hub="a: [\n---\n# b"), domain=component("d`|\n.D", **{"o|`\n": 1})
    )
    card = card_of(tmp_path, config, evaluated(8, 0.5, "s|`\n---"))
    assert card.data.base_model == "a: [\n---\n# b"
    assert row_of(card, "domain") == ["`d'\\|\\n.D(o\\|'\\n=1)`"]
    assert row_of(card, "`s\\|'\\n---`")[-1] == "`0.500 (v8)`"


def export(run: Path, out: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "pipelinerl.export", str(run), "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "run"))


def test_an_export_whose_run_has_lost_its_streams_is_complete(run, tmp_path):
    (segment,) = (run / "streams" / "actor_events").glob("*.records")
    segment.write_bytes(b"\xff" * 100 + segment.read_bytes()[100:])
    done = export(run, tmp_path / "out")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 0 and line.startswith("export: the card has no held-out success: ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "weights.pt"]
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert "# demo_model, version 3" in card.text and "None is recorded." in card.text
    assert str(tmp_path) not in str(card) and str(ROOT) not in str(card)
