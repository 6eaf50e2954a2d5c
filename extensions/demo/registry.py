"""The directories and recipes of the demo models, by name (`model=NAME`).

The model of the sums is part of the project, so that the demo starts immediately and equally everywhere. The
others are made at their first use.
"""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.model_maker import ModelMaker
from pipelinerl.paths import ROOT

SHIPPED = Path(__file__).resolve().parent / "checkpoints"
CACHE = ROOT / ".cache"
RECIPES = "extensions.demo.recipes"
SEED = 2  # with it the task is learnt well before the end of the stage


class DemoModel(NamedTuple):
    directory: Path
    recipe: str  # path of the class
    begins_with: str | None = None  # demo model from which its training starts


DEMO_MODELS = {
    "sums": DemoModel(SHIPPED / "sums", f"{RECIPES}.sums.SumsRecipe"),
    "thinking": DemoModel(CACHE / "thinking_model", f"{RECIPES}.thinking.ThinkingRecipe", begins_with="sums"),
    "guessing": DemoModel(CACHE / "guessing_model", f"{RECIPES}.guessing.GuessingRecipe"),
    "word_problems": DemoModel(CACHE / "word_problems_model", f"{RECIPES}.word_problems.WordProblemsRecipe"),
}


class Demo(ModelMaker):
    """Makes a demo model. All of them have the tokenizer and chat template of the one that ships."""

    tokenizer = SHIPPED / "sums"

    def __init__(self, name: str):
        if name not in DEMO_MODELS:
            raise ValueError(f"{name} is not one of {', '.join(DEMO_MODELS)}")
        self._name = name
        self._model = DEMO_MODELS[name]

    @property
    def directory(self) -> Path:
        return self._model.directory

    def make(self, out: Path | None = None, seed: int = SEED, begins_with: Path | None = None) -> None:
        """Makes the model, and the one that it starts from, unless they exist."""
        from hydra.utils import get_class

        from extensions.demo.build import make_demo_model

        if self._model.begins_with and begins_with is None:
            before = Demo(self._model.begins_with)
            before.make(seed=seed)
            begins_with = before.directory
        out = out or self.directory
        if not out.exists():
            print(f"making the demo model {self._name}, once: a few minutes, more on busy cores", flush=True)
        recipe = get_class(self._model.recipe)
        make_demo_model(out, recipe(seed, *([begins_with] if begins_with else [])))
