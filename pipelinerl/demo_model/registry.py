"""The demo models by name: where each is kept, and its course. `model.demo` names one."""

from pathlib import Path
from typing import NamedTuple

from pipelinerl.paths import ROOT

CACHE = ROOT / ".cache"
COURSES = "pipelinerl.demo_model.recipes"
SEED = 2  # one with which the lessons are learnt well before they end


class Kept(NamedTuple):
    directory: Path
    course: str  # its class
    begins_with: str | None = None  # the demo model that it goes on from


DEMO_MODELS = {
    "sums": Kept(CACHE / "demo_model", f"{COURSES}.sums.Sums"),
    "thinking": Kept(CACHE / "thinking_model", f"{COURSES}.thinking.Thinking", begins_with="sums"),
    "guessing": Kept(CACHE / "guessing_model", f"{COURSES}.guessing.GuessingCourse"),
    "word_problems": Kept(CACHE / "word_problems_model", f"{COURSES}.word_problems.WordProblems"),
}


def make(name: str, out: Path, seed: int = SEED, begins_with: Path | None = None) -> None:
    """Returns at once where it has been made before."""
    from hydra.utils import get_class

    from pipelinerl.demo_model.build import build

    kept = DEMO_MODELS[name]
    if kept.begins_with and begins_with is None:
        begins_with = DEMO_MODELS[kept.begins_with].directory
        make(kept.begins_with, begins_with, seed)
    if not out.exists():
        print(f"making the demo model {name}, once: a few minutes, more on busy cores", flush=True)
    build(out, get_class(kept.course)(seed, *([begins_with] if begins_with else [])))
