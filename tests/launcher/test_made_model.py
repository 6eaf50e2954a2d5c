"""A run without model.path has the model that a class of the user's makes, once, before the start."""

from pathlib import Path

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from pipelinerl.errors import PartError, PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.plan import describe_plan
from pipelinerl.launcher.prepare import prepare
from pipelinerl.model_maker import ModelMaker


class Tiny(ModelMaker):
    tokenizer = Path()  # no plan is made

    def __init__(self, folder: str):
        self._folder = Path(folder)

    @property
    def directory(self) -> Path:
        return self._folder / "model"

    def make(self) -> None:
        make_tiny_model(self.directory)
        (self._folder / "made").touch(exist_ok=False)


class WithTokenizer(Tiny):
    tokenizer = None  # it comes with the model


class Broken(Tiny):
    def make(self) -> None:
        raise KeyError("weights")


class Lazy(Tiny):
    def make(self) -> None:
        self.directory.mkdir()


def made_by(named: type, folder: Path) -> list[str]:
    maker = {"_target_": f"{__name__}.{named.__name__}", "folder": folder}
    letters = ["~domain", "+domain._target_=tests.letters_domain.LettersDomain", "eval.problems=16"]
    options = [f"+model.made_by.{key}={value}" for key, value in maker.items()]
    return [f"run_dir={folder}/run", "~model.made_by", *options, *letters]


def test_it_is_made_once(tmp_path):
    for _ in range(2):
        with prepare(compose_config(made_by(Tiny, tmp_path))) as prepared:
            assert prepared.placed.config.model.path == str(tmp_path / "model")
            assert (tmp_path / "made").exists()


def test_a_maker_that_makes_nothing_is_named(tmp_path):
    with (
        pytest.raises(PlanError, match=r"Lazy: make\(\) left no whole model in .*: no config.json"),
        prepare(compose_config(made_by(Lazy, tmp_path))),
    ):
        pass


def test_a_maker_that_breaks_is_named_with_its_line(tmp_path):
    with (
        pytest.raises(PartError, match=rf"{Path(__file__).name}:\d+ raised KeyError"),
        prepare(compose_config(made_by(Broken, tmp_path))),
    ):
        pass


def test_of_a_tokenizer_that_comes_with_the_model_a_plan_shows_nothing_yet(tmp_path):
    with prepare(compose_config([*made_by(WithTokenizer, tmp_path), "plan=true"])) as prepared:
        assert "problems: their prompts are shown once the model is made" in "\n".join(
            describe_plan(prepared)
        )
    too_short = [*made_by(WithTokenizer, tmp_path), "sampling.max_prompt_tokens=1"]
    with (
        pytest.raises(PlanError, match="sampling.max_prompt_tokens is 1"),
        prepare(compose_config(too_short)),
    ):
        pass
