"""The demo models by name. `model=NAME` selects one.

The sums model ships with the project, so the demo starts from the same model everywhere. The other models are
made when they are first used.
"""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.model_maker import ModelMaker
from pipelinerl.paths import ROOT

SHIPPED = Path(__file__).resolve().parent / "checkpoints"
CACHE = ROOT / ".cache"
RECIPES = "extensions.demo.recipes"
SEED = 2  # with this seed, the models learn their tasks early


class DemoModel(NamedTuple):
    directory: Path
    recipe: str  # import path of the recipe's class
    begins_with: str | None = None  # name of the demo model that training starts from


DEMO_MODELS = {
    "sums": DemoModel(SHIPPED / "sums", f"{RECIPES}.sums.SumsRecipe"),
    "hybrid": DemoModel(CACHE / "hybrid_model", f"{RECIPES}.hybrid.HybridRecipe"),
    "thinking": DemoModel(CACHE / "thinking_model", f"{RECIPES}.thinking.ThinkingRecipe", begins_with="sums"),
    "guessing": DemoModel(CACHE / "guessing_model", f"{RECIPES}.guessing.GuessingRecipe"),
    "expressions": DemoModel(CACHE / "expressions_model", f"{RECIPES}.expressions.ExpressionsRecipe"),
    "word_problems": DemoModel(CACHE / "word_problems_model", f"{RECIPES}.word_problems.WordProblemsRecipe"),
}


class Demo(ModelMaker):
    """Makes a demo model, by name. All demo models have the tokenizer and template of the shipped one."""

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
        """Makes the model, and the model that its training starts from, unless they exist."""
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
