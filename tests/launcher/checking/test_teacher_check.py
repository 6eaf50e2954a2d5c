"""A teacher that cannot score what the run's model samples is refused in one line."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from contracts.conformance.tiny_model import character_tokenizer, make_tiny_model
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model import check_teacher, with_absolute_teacher
from pipelinerl.launcher.composing.compose import compose_config


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("own")))


def check(own: PreTrainedTokenizerBase, *teacher: Path) -> None:
    given = [f"+reference.arguments.model={directory}" for directory in teacher]
    check_teacher(compose_config(["reference=transformers", *given]).reference, own, "own")


def test_a_teacher_with_the_same_vocabulary_is_taken(own, tmp_path):
    check(own, Path(make_tiny_model(tmp_path / "teacher")))


def refusal(own: PreTrainedTokenizerBase, teacher: Path) -> str:
    with pytest.raises(PlanError) as refused:
        check(own, teacher)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_another_teacher_is_refused(own, tmp_path):
    says = refusal(own, tmp_path)
    assert "reference.arguments.model=" in says and "no config.json" in says
    teacher = Path(make_tiny_model(tmp_path / "teacher"))
    character_tokenizer(200).save_pretrained(teacher)
    assert "has another vocabulary than model.path=own" in refusal(own, teacher)
    (teacher / "tokenizer.json").write_text("{")
    weights = (teacher / "model.safetensors").read_bytes()
    assert "has no usable tokenizer" in refusal(own, teacher)
    (teacher / "model.safetensors").write_bytes(weights[:-9])
    assert "model.safetensors cannot be read" in refusal(own, teacher)


def test_a_teacher_stays_the_one_that_a_link_led_to_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first" / "final").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("first")
    linked = compose_config(["reference=transformers", "+reference.arguments.model=latest/final"]).reference
    assert with_absolute_teacher(linked).arguments["model"] == str(tmp_path / "first" / "final")
    untouched = compose_config(["reference=transformers"]).reference
    assert with_absolute_teacher(untouched) is untouched
