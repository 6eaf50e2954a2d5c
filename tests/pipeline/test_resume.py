"""A run that was stopped anywhere goes on: no group twice, none lost, and, where it can be, the same run."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from contracts.records import (
    CheckpointSaved,
    Evaluated,
    SamplerState,
    Started,
    StepClosed,
    WeightsPublished,
)
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.streams.files import FileStreams
from pipelinerl.training.checkpoints import Checkpoints
from pipelinerl.training.rank_zero import TIMED
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
    wait_for_record,
)

LEARNING = (
    "++domain._target_=tests.letters_domain.LettersDomain",
    "filters=[]",  # success everywhere, late in the run, would leave nothing to train on
    "optimizer.lr=0.06",
    "max_steps=60",
    "checkpoint.every=5",
    "restarts=0",
)


def kill_trainer(launcher, run: Path, events: int, delay_s: float = 0.0) -> int:
    """SIGKILL once so many more events are in its stream, and a moment; returns the launcher's status."""
    stream = run / "streams" / "trainer_events"
    have = len(records(run, "trainer_events")) if stream.exists() else 0

    def has_ended_or_written(count: int) -> bool:
        return launcher.poll() is not None or len(records(run, "trainer_events")) >= have + count

    wait_for(lambda: has_ended_or_written(1))
    pid = None if launcher.poll() is not None else job_pid(run, "pipelinerl.trainer")  # a step is shorter
    wait_for(lambda: has_ended_or_written(events))
    if launcher.poll() is None:
        time.sleep(random.Random(events).uniform(0, delay_s))  # anywhere between two events
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status, err = finish(launcher)
    assert status in (0, 1), err
    return status


def last_reward(run: Path) -> float:
    rollouts = records(run, "rollouts")[-100:]
    return sum(rollout.reward for rollout in rollouts) / len(rollouts)


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
def test_wherever_the_trainer_is_killed_every_group_is_accounted_for_and_the_run_learns(tmp_path, kills):
    run, chance = tmp_path / "run", random.Random(kills + 1000 * SEED)
    launcher = start(run, *LEARNING)
    for _ in range(kills):
        status = kill_trainer(launcher, run, events=chance.randint(1, 30), delay_s=0.2)
        assert_accounted(run, ended=status == 0)
        assert summary(run)["accounting_errors"] == [] and summary(run)["rollouts_lost"] == 0
        assert not processes_of(run)
        if status == 0:
            launcher = None
            break
        launcher = resume(run)
    if launcher:
        assert finish(launcher)[0] == 0
    outcomes = assert_accounted(run)
    assert len(outcomes["trained"]) == 60 * 8
    assert summary(run)["optimizer_steps"] == 60 and summary(run)["accounting_errors"] == []
    assert summary(run)["logprob_gap_mean_abs"] < 1e-5
    assert last_reward(run) > 0.8


REPEATABLE = (
    "++domain._target_=tests.letters_domain.LettersDomain",
    "schedule=conventional",
    "sampling.seeded=true",
    "optimizer.lr=0.05",
    "max_steps=12",
    "checkpoint.every=5",
    "seed=3",
)


def steps(run: Path) -> dict[int, dict[str, float]]:
    """What the trainer measured at each step, when it took it last."""
    lines = [line for line in read_metrics(metrics_path(run, "trainer")) if "loss" in line]
    return {
        line["step"]: {name: value for name, value in line.items() if name not in CLOCK} for line in lines
    }


CLOCK = {"time", "trained_tokens_per_s", "step_s", *(f"{name}_s" for name in TIMED)}


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints" / "final" / "weights.pt")


@pytest.mark.long
def test_a_conventional_run_with_seeds_that_was_killed_is_the_uninterrupted_one_step_by_step(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert finish(start(whole, *REPEATABLE))[0] == 0
    launcher = start(killed, *REPEATABLE, "restarts=0")
    for events in (22, 9):  # in the seventh step, and in the eighth
        assert kill_trainer(launcher, killed, events) == 1
        launcher = resume(killed)
    assert finish(launcher)[0] == 0
    assert len(resumptions_of(killed)) == 2
    assert steps(killed) == steps(whole) and len(steps(whole)) == 12
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(killed).items())
    rewards = [{(r.problem_id, r.rollout_id[-1]): r.reward for r in trained(run)} for run in (whole, killed)]
    assert rewards[0] == rewards[1]


def trained(run: Path) -> list:
    groups = assert_accounted(run)["trained"]
    return [rollout for rollout in records(run, "rollouts") if rollout.group_id in groups]


@pytest.mark.long
def test_an_older_checkpoint_goes_back_in_version_and_forgets_the_newer(tmp_path):
    run = tmp_path / "run"
    assert finish(start(run, *LEARNING, "max_steps=12", "checkpoint.keep=3"))[0] == 0
    checkpoints = Checkpoints(run)
    assert [position.version for position in checkpoints.complete_checkpoints()] == [5, 10, 12]
    status, err = finish(launch(run, "resume=5", "max_steps=14"))
    assert status == 0, err
    assert [position.version for position in checkpoints.complete_checkpoints()] == [5, 10, 14]
    (resumed,) = resumptions_of(run)
    assert resumed.version == 5 and resumed.rolled_back
    published = [r.version for r in records(run, "trainer_events") if isinstance(r, WeightsPublished)]
    assert published == [*range(13), *range(5, 15)]
    outcomes = assert_accounted(run)
    assert len(outcomes["trained"]) == 14 * 8
    assert summary(run)["optimizer_steps"] == 14 and summary(run)["resumed"] == 1
    # What was sampled by versions that no longer exist is not trained on.
    before = [r for r in records(run, "rollouts") if r.run == records(run, "rollouts")[0].run]
    assert all(max(r.versions) <= 5 for r in before if r.group_id in resumed.replayed)
    lost = {r.group_id for r in before if max(r.versions) > 5} & set(resumed.rolled_back)
    assert lost and not lost & outcomes["trained"]


@pytest.mark.long
def test_problems_of_lost_groups_are_drawn_again_and_the_sampler_goes_on(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, *LEARNING, "max_steps=1000")
    wait_for_record(run, "sampler_states", SamplerState)
    wait_for_record(run, "trainer_events", StepClosed, count=8)
    launcher.send_signal(signal.SIGINT)
    assert finish(launcher)[0] == 130
    checkpoint = Checkpoints(run).complete_checkpoints()[-1].version
    assert finish(resume(run, f"max_steps={checkpoint + 12}"))[0] == 0
    (resumed,) = resumptions_of(run)
    started = [r for r in records(run, "actor_events") if isinstance(r, Started)]
    earlier = [r for r in started if r.group_id < resumed.next_group]
    later = [r for r in started if r.group_id >= resumed.next_group]
    dropped = {r.draw for r in earlier if r.group_id in {*resumed.interrupted, *resumed.rolled_back}}
    assert dropped and [r.draw for r in later[: len(dropped)]] == sorted(dropped)
    fresh = [r.draw for r in later[len(dropped) :]]
    assert fresh == list(range(resumed.draws, resumed.draws + len(fresh)))
    problems = {r.draw: r.problem for r in started}
    assert len({*problems.values()}) == len(problems)  # of one epoch: none twice
    assert all(problems[r.draw] == r.problem for r in started)


@pytest.mark.long
def test_a_run_killed_before_its_first_checkpoint_begins_again_on_another_number_of_ranks(tmp_path):
    run = tmp_path / "run"
    assert kill_trainer(start(run, *LEARNING, "checkpoint.every=100"), run, events=8) == 1
    status, err = finish(resume(run, "max_steps=8", "world.trainer_ranks=2"))
    assert status == 0, err
    assert resumptions_of(run)[0].version == 0
    assert len(assert_accounted(run)["trained"]) == 8 * 8
    assert [r.version for r in records(run, "actor_events") if isinstance(r, Evaluated)][-1] == 8


@pytest.mark.long
def test_retention_keeps_what_the_oldest_checkpoint_needs(tmp_path):
    run = tmp_path / "run"
    small = ("streams.segment_bytes=4096", "streams.keep_bytes=65536")
    status, err = finish(start(run, *LEARNING, *small, "max_steps=30"))
    assert status == 0, err
    saved = [r for r in records(run, "trainer_events") if isinstance(r, CheckpointSaved)]
    assert [r.version for r in saved] == list(range(5, 31, 5))
    first = FileStreams(run / "streams").reader("rollouts").first_offset()
    assert 0 < first <= Checkpoints(run).complete_checkpoints()[0].rollouts_offset
    status, err = finish(resume(run, "max_steps=32"))
    assert status == 0, err
