"""A whole run of a tiny model on real engines: it learns letters."""

import json
from pathlib import Path

from contracts.conformance.tiny_model import make_tiny_model
from tests.forked import run_program
from tests.pipeline.runs import assert_accounted


def learns_in_twenty_steps(folder: Path, *engines: str) -> set[str]:
    """The names of the inference engines that the run had."""
    make_tiny_model(folder / "model")
    settings = [
        f"run_dir={folder}/run",
        f"model.path={folder}/model",
        "~domain",
        "+domain._target_=tests.letters_domain.LettersDomain",
        "batch_size=64",
        "max_steps=20",
        "optimizer.lr=1e-2",
        "optimizer.decay_steps=null",
        "sampling.max_tokens=12",
        "eval.problems=64",
        "eval.concurrency=64",  # nearly all of it at the version that it begins with
        "stop_at=null",
        "filters=[]",  # once every group succeeds, steps have to go on
        *engines,
    ]
    ended = run_program("launch.py", *settings)
    assert ended.returncode == 0, ended.stderr
    assert_accounted(folder / "run")
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["heldout_success_end"] > 0.8 > 0.2 > summary["heldout_success_start"]
    assert summary["updates_while_generating"] > 0 and summary["rollouts_lost"] == 0
    assert summary["logprob_gap_mean_abs"] < 1e-4
    return {line.split("-m inference_adapters.")[1].split()[0] for line in _plan(settings)}


def _plan(settings: list[str]) -> list[str]:
    shown = run_program("launch.py", *settings[1:], "plan=true").stdout
    return [line for line in shown.splitlines() if "-m inference_adapters." in line]
