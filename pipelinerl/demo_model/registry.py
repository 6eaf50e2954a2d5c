"""The demo models by name: where each is kept, and its recipe. `model.demo` names one.

The model of the sums is part of the project: the demo starts from it at once, and everywhere alike. The
others are made where they are first used.
"""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.paths import ROOT

SHIPPED = Path(__file__).resolve().parent / "checkpoints"
CACHE = ROOT / ".cache"
RECIPES = "pipelinerl.demo_model.recipes"
SEED = 2  # one with which the task is learnt well before the stage ends


class DemoModel(NamedTuple):
    directory: Path
    recipe: str  # its class
    begins_with: str | None = None  # the demo model that it goes on from


DEMO_MODELS = {
    "sums": DemoModel(SHIPPED / "sums", f"{RECIPES}.sums.SumsRecipe"),
    "thinking": DemoModel(CACHE / "thinking_model", f"{RECIPES}.thinking.ThinkingRecipe", begins_with="sums"),
    "guessing": DemoModel(CACHE / "guessing_model", f"{RECIPES}.guessing.GuessingRecipe"),
    "word_problems": DemoModel(
        CACHE / "word_problems_model", "extensions.math.demo_recipe.WordProblemsRecipe"
    ),
}


def make_named(name: str, out: Path, seed: int = SEED, begins_with: Path | None = None) -> None:
    """Makes the demo model of that name, and the one that it starts from; returns at once if they exist."""
    from hydra.utils import get_class

    from pipelinerl.demo_model.build import make_demo_model

    demo_model = DEMO_MODELS[name]
    if demo_model.begins_with and begins_with is None:
        begins_with = DEMO_MODELS[demo_model.begins_with].directory
        make_named(demo_model.begins_with, begins_with, seed)
    if not out.exists():
        print(f"making the demo model {name}, once: a few minutes, more on busy cores", flush=True)
    make_demo_model(out, get_class(demo_model.recipe)(seed, *([begins_with] if begins_with else [])))
