"""The top of `pipelinerl/`, which a newcomer meets first. A new entry is added here with its sentence."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pipelinerl"
MOST = 38
ENTRIES = {
    "__init__.py": "The package's own sentence.",
    "actor.py": "The process that samples rollouts.",
    "preprocessor.py": "The process that makes rollouts into rows.",
    "trainer.py": "The process that learns, one a rank.",
    "config.py": "The schema of the configuration.",
    "components.py": "Makes what the configuration names.",
    "process.py": "What the main function of every process shares.",
    "heartbeat.py": "Tells the launcher that a worker is alive.",
    "errors.py": "The errors that end a run and that a restart does not remove.",
    "paths.py": "Where the project's own files are.",
    "metrics.py": "Writes and reads the metrics of a process.",
    "spans.py": "Writes what a process did when.",
    "health": "Warning signs before a collapse.",
    "advantages.py": "Rewards of a group into advantages.",
    "filters.py": "Which rollouts stay in the loss.",
    "normalisations.py": "How much each token weighs in a step.",
    "packing.py": "Rollouts into rows of micro-batches.",
    "objectives": "The losses.",
    "rewards": "Terms of the reward.",
    "samplers": "Which problem comes next.",
    "domains": "What to train on.",
    "judging": "What answers are worth, decided where they can do no harm.",
    "clients": "The pipeline's side of the inference contract.",
    "rollouts": "What the actor does.",
    "batching": "What the preprocessor does.",
    "training": "What the trainer does.",
    "streams": "Records between processes.",
    "launcher": "What launch.py does.",
    "report": "What a run has done.",
    "demo_model": "Small models for CPU runs.",
    "view": "A run seen from outside: the viewer, trackers, parquet.",
    "slurm": "A command: scripts for sbatch.",
    "simulate": "A command: a run under a simulated clock.",
    "export.py": "A command: a checkpoint as a Hugging Face model.",
    "track.py": "A command: the metrics of a run into trackers.",
    "scale.py": "A command: more or fewer servers for a run that is running.",
    "replay.py": "A command: one process of a run without the others.",
    "tools": "Commands that work on models, problems and answers.",
}


def test_the_top_of_the_package_is_what_is_named_here():
    found = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert found == ENTRIES.keys()
    assert len(ENTRIES) <= MOST


@pytest.mark.parametrize("package", sorted(name for name in ENTRIES if "." not in name))
def test_a_package_says_what_it_is_for_and_what_it_must_not_know(package):
    docstring = " ".join(
        ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text())).split()
    )
    assert "ust not know" in docstring
    assert "Called by" in docstring or "Built by" in docstring
