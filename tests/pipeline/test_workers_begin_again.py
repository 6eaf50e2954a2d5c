"""Whole runs whose workers are killed: they go on by themselves, in the same launch, and lose nothing."""

import os
import signal
from pathlib import Path

import pytest
import torch

from contracts.records import Restarted, Resumed, SaveWanted, ServerJoined, StepClosed
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.training.rank_zero import TIMED
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    processes_of,
    records,
    resume,
    resumptions_of,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.step_gate import StepGate

STEPS = 12


def events(run: Path, kind: type) -> list:
    return [record for record in records(run, "launcher_events") if isinstance(record, kind)]


def hit(run: Path, module: str, after_steps: int) -> None:
    """Kills a worker once so many steps have been closed."""
    wait_for_record(run, "trainer_events", StepClosed, count=after_steps)
    os.kill(job_pid(run, module), signal.SIGKILL)


def test_where_the_trainer_lives_not_one_step_is_lost(tmp_path):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=7)
    launcher = start(run, f"max_steps={STEPS}", "checkpoint.every=5", *gate.settings)
    wait_for_record(run, "trainer_events", StepClosed)
    servers = server_pids(run)
    hit(run, "pipelinerl.actor", after_steps=6)
    wait_for_record(run, "launcher_events", SaveWanted)
    gate.allow(9)
    wait_for_record(run, "launcher_events", Restarted)
    assert launcher.poll() is None
    assert server_pids(run)[:1] == servers  # it was not started again
    gate.open()
    status, err = finish(launcher)
    assert status == 0, err
    assert "actor has ended; the trainer saves its state" in err
    (restarted,), (resumed,) = events(run, Restarted), events(run, Resumed)
    assert restarted.kind == "workers" and restarted.why.startswith("actor ")
    assert [line["restarts_workers"] for line in read_metrics(metrics_path(run, "launcher"))] == [1]
    closed = [r.version for r in records(run, "trainer_events") if isinstance(r, StepClosed)]
    assert resumed.version >= 6 and sorted(closed) == [*range(1, STEPS + 1)]
    assert len(assert_accounted(run)["trained"]) == STEPS * 8
    assert len(events(run, SaveWanted)) == 1 and len(events(run, ServerJoined)) == 2
    assert processes_of(run) == []


REPEATABLE = (
    "++domain._target_=tests.letters_domain.LettersDomain",
    "schedule=conventional",
    "sampling.seeded=true",
    "optimizer.lr=0.05",
    "max_steps=16",
    "checkpoint.every=5",
    "seed=3",
)
CLOCK = {"time", "trained_tokens_per_s", "step_s", *(f"{name}_s" for name in TIMED)}


def steps(run: Path) -> dict[int, dict[str, float]]:
    """What the trainer measured at each step, when it took it last."""
    lines = [line for line in read_metrics(metrics_path(run, "trainer")) if "loss" in line]
    return {
        line["step"]: {name: value for name, value in line.items() if name not in CLOCK} for line in lines
    }


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints" / "final" / "weights.pt")


def rewards(run: Path) -> dict[tuple[str, str], float]:
    """What was trained on, by problem and attempt."""
    groups = assert_accounted(run)["trained"]
    rollouts = [rollout for rollout in records(run, "rollouts") if rollout.group_id in groups]
    return {(rollout.problem_id, rollout.rollout_id[-1]): rollout.reward for rollout in rollouts}


@pytest.mark.long
def test_a_seeded_conventional_run_of_which_everything_is_killed_is_the_uninterrupted_one(tmp_path):
    """Its workers begin again in the same launch. Then the launcher is killed, and the run is resumed."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    status, err = finish(start(whole, *REPEATABLE))
    assert status == 0, err
    launcher, closed = start(killed, *REPEATABLE), 0
    for count, module in enumerate(("trainer", "actor", "preprocessor"), start=1):
        hit(killed, f"pipelinerl.{module}", after_steps=closed + 3)
        wait_for_record(killed, "launcher_events", Restarted, count=count)
        closed = sum(isinstance(record, StepClosed) for record in records(killed, "trainer_events"))
    wait_for_record(killed, "trainer_events", StepClosed, count=closed + 2)
    launcher.kill()
    finish(launcher)
    wait_for(lambda: processes_of(killed) == [])
    status, err = finish(resume(killed))
    assert status == 0, err
    assert len(events(killed, Restarted)) == 3 and len(resumptions_of(killed)) == 4
    assert steps(killed) == steps(whole) and len(steps(whole)) == 16
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(killed).items())
    assert rewards(killed) == rewards(whole)
