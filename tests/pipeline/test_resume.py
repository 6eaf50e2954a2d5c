"""A run that was stopped anywhere goes on, also from earlier weights: no group twice, and none lost."""

import json
import os
import random
import signal
import time
from pathlib import Path

from contracts.records import WeightsPublished
from pipelinerl.training.checkpoints import Checkpoints
from tests.pipeline.runs import (
    SEED,
    assert_accounted,
    finish,
    job_pid,
    launch,
    processes_of,
    records,
    resume,
    resumptions_of,
    start,
    wait_for,
)
from tests.step_gate import StepGate

LEARNING = (
    "++domain._target_=tests.letters_domain.LettersDomain",
    "filters=[]",  # success everywhere, late in the run, would leave nothing to train on
    "optimizer.lr=0.06",
    "max_steps=60",
    "checkpoint.every=5",
    "checkpoint.keep=3",
    "restarts=0",
)


def kill_trainer_anywhere(run: Path, chance: random.Random) -> None:
    stream = run / "streams" / "trainer_events"
    wait_for(lambda: stream.exists() and records(run, "trainer_events"))
    pid, events = job_pid(run, "pipelinerl.trainer"), chance.randint(1, 30)
    wait_for(lambda: len(records(run, "trainer_events")) >= events)
    time.sleep(chance.uniform(0, 0.2))  # anywhere between two events
    os.kill(pid, signal.SIGKILL)


def last_reward(run: Path) -> float:
    rollouts = records(run, "rollouts")[-100:]
    return sum(rollout.reward for rollout in rollouts) / len(rollouts)


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def versions(run: Path) -> list[int]:
    return [position.version for position in Checkpoints(run).complete_checkpoints()]


def test_wherever_the_trainer_is_killed_every_group_is_accounted_for_and_the_run_learns(tmp_path):
    """Then it goes back to an older checkpoint, and forgets the newer."""
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=40)
    launcher = start(run, *LEARNING, *gate.settings)
    kill_trainer_anywhere(run, random.Random(1 + 1000 * SEED))
    gate.open()
    assert finish(launcher)[0] == 1
    assert_accounted(run, ended=False)
    assert summary(run)["accounting_errors"] == [] and summary(run)["rollouts_lost"] == 0
    assert not processes_of(run)
    status, err = finish(resume(run))
    assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == 60 * 8
    assert summary(run)["optimizer_steps"] == 60 and summary(run)["accounting_errors"] == []
    assert summary(run)["logprob_gap_mean_abs"] < 1e-5
    assert last_reward(run) > 0.8

    assert versions(run) == [50, 55, 60]
    status, err = finish(launch(run, "resume=50", "max_steps=52"))
    assert status == 0, err
    assert versions(run) == [50, 52]
    resumed = resumptions_of(run)[-1]
    assert resumed.version == 50 and resumed.rolled_back
    published = [r.version for r in records(run, "trainer_events") if isinstance(r, WeightsPublished)]
    assert published[-4:] == [60, 50, 51, 52]
    outcomes = assert_accounted(run)
    assert len(outcomes["trained"]) == 52 * 8
    before = [r for r in records(run, "rollouts") if r.group_id < resumed.next_group]
    newer = {r.group_id for r in before if max(r.versions) > 50}  # by versions that no longer exist
    assert newer & set(resumed.rolled_back) and not newer & outcomes["trained"]
