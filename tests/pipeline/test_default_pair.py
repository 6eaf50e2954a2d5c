"""The demo's own engines in a whole run: transformers serves, FSDP trains, on two ranks.

The run is made once; each test reads what it left behind.
"""

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.plain_generate import success
from contracts.conformance.tiny_model import make_tiny_model
from contracts.records import MicroBatchRow
from pipelinerl.config import load_config
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.spans import spans_path
from tests.forked import run_program
from tests.pipeline.runs import assert_accounted, finish, launch_command, records


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("default_pair")
    make_tiny_model(folder / "model")
    settings = [
        f"model.path={folder}/model",
        "~domain",
        "+domain._target_=tests.letters_domain.LettersDomain",
        "world.trainer_ranks=2",
        "batch_size=64",
        "max_steps=16",
        "optimizer.lr=1e-2",
        "optimizer.decay_steps=null",
        "sampling.max_tokens=12",
        "eval.problems=64",
        "eval.concurrency=64",  # nearly all of it at the version that it begins with
        "stop_at=null",
        "filters=[]",  # once every group succeeds, steps have to go on
    ]
    status, err = finish(launch_command(folder / "run", *settings))
    assert status == 0, err
    return folder / "run"


@pytest.fixture(scope="module")
def summary(run_dir) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


def test_it_learns(summary):
    assert summary["heldout_success_start"] < 0.2
    assert summary["heldout_success_end"] > 0.8


def test_updates_land_while_sequences_are_generated(summary):
    assert summary["updates_while_generating"] > 0 and summary["sequences_multi_version"] > 0
    assert summary["weight_updates"] == 17 and summary["rollouts_retried"] == 0


def test_the_servers_hold_the_trainers_weights(summary):
    assert summary["logprob_gap_mean_abs"] < 1e-5


def test_every_group_is_accounted_for(run_dir, summary):
    assert_accounted(run_dir)
    assert summary["accounting_errors"] == [] and summary["lag_max"] <= 4


def test_both_ranks_have_work(run_dir):
    rows = [r for r in records(run_dir, "rows") if isinstance(r, MicroBatchRow)]
    assert all(len(row.micro_batches) == 2 and all(row.micro_batches) for row in rows)


def test_the_checkpoint_generates_as_well_without_the_pipeline(run_dir, summary):
    rate = asyncio.run(success(load_config(run_dir), run_dir / "checkpoints" / "final", problems=64))
    assert rate == pytest.approx(summary["heldout_success_end"], abs=0.15)


def test_the_trainer_alone_repeats_its_steps_from_the_recorded_rows(run_dir, tmp_path):
    out = str(tmp_path / "out")
    printed = run_program("-m", "extensions.tools.replay", "trainer", str(run_dir), "--out", out).stdout
    steps = [line for line in printed.splitlines() if line.startswith("step ")]
    norms = [float(line.split("gradient norm")[1].split()[0]) for line in steps]
    recorded = [m["grad_norm"] for m in read_metrics(metrics_path(run_dir, "trainer")) if "grad_norm" in m]
    assert norms[:3] == pytest.approx(recorded[:3], rel=1e-3) and len(norms) == len(recorded) == 16
    assert (tmp_path / "out" / "checkpoints" / "final" / "config.json").exists()


def test_what_the_trainer_does_has_a_name(run_dir):
    lines = map(json.loads, spans_path(run_dir, "trainer-0").read_text().splitlines())
    assert {line["n"] for line in lines} >= {"wait", "learn", "optimizer", "publish", "save"}
