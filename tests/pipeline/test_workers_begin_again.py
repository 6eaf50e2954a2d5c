"""Whole runs whose workers are killed, stopped or hang: they go on by themselves, in the same launch."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from benchmarks.chaos.news import News
from benchmarks.run_processes import jobs_of, redis_of
from contracts.records import (
    CheckpointSaved,
    Evaluated,
    Restarted,
    Resumed,
    SaveWanted,
    ServerJoined,
    StepClosed,
)
from pipelinerl.metrics import metrics_path, read_metrics
from pipelinerl.process import REDIS_VARIABLE
from tests.pipeline.runs import (
    SEED,
    assert_accounted,
    finish,
    job_pid,
    launch,
    processes_of,
    records,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.pipeline.test_resume import REPEATABLE, steps, trained, weights
from tests.step_gate import StepGate

LONG = pytest.mark.long
STEPS = 12
SHORT = (f"max_steps={STEPS}", "checkpoint.every=5")


def events(run: Path, kind: type) -> list:
    return [record for record in records(run, "launcher_events") if isinstance(record, kind)]


def hit(run: Path, module: str, number: int, after_steps: int) -> None:
    """Sends a signal to a worker once so many steps have been closed."""
    wait_for_record(run, "trainer_events", StepClosed, count=after_steps)
    os.kill(job_pid(run, module), number)


def assert_went_on(run: Path, launcher, restarts: int = 1) -> str:
    """Checks that the run has ended by itself with what it was asked for; returns what was said."""
    status, err = finish(launcher)
    assert status == 0, err
    assert len(assert_accounted(run)["trained"]) == STEPS * 8
    assert len(events(run, Restarted)) == len(events(run, Resumed)) == restarts, err
    counted = [line["restarts_workers"] for line in read_metrics(metrics_path(run, "launcher"))]
    assert counted == [*range(1, restarts + 1)]
    assert processes_of(run) == []
    return err


@pytest.mark.parametrize(
    ("module", "settings"),
    [
        pytest.param("pipelinerl.actor", (), id="actor"),
        pytest.param("pipelinerl.preprocessor", ("streams=redis",), id="preprocessor, Redis", marks=LONG),
        pytest.param("pipelinerl.actor", ("schedule=async", "max_lag=2"), id="actor, async", marks=LONG),
        pytest.param(
            "pipelinerl.preprocessor",
            ("world.trainer_ranks=2",),
            id="preprocessor, two ranks",
            marks=LONG,
        ),
    ],
)
def test_where_the_trainer_lives_not_one_step_is_lost(tmp_path, module, settings):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=7)
    launcher = start(run, *SHORT, *gate.settings, *settings)
    wait_for_record(run, "trainer_events", StepClosed)
    servers = server_pids(run)
    hit(run, module, signal.SIGKILL, after_steps=6)
    wait_for_record(run, "launcher_events", SaveWanted)
    gate.open()
    (restarted,) = events_after(launcher, run)
    assert server_pids(run)[:1] == servers  # it was not started again
    err = assert_went_on(run, launcher)
    name = module.partition(".")[2]
    assert f"{name} has ended; the trainer saves its state" in err
    assert restarted.kind == "workers" and restarted.why.startswith(f"{name} ")
    (resumed,) = events(run, Resumed)
    closed = [r.version for r in records(run, "trainer_events") if isinstance(r, StepClosed)]
    assert resumed.version >= 6 and sorted(closed) == [*range(1, STEPS + 1)]
    assert len(events(run, SaveWanted)) == 1 and len(events(run, ServerJoined)) == 2


def events_after(launcher, run: Path) -> list[Restarted]:
    """The restart, as soon as it is told."""
    wait_for_record(run, "launcher_events", Restarted)
    assert launcher.poll() is None
    return events(run, Restarted)


@pytest.mark.parametrize(
    "settings",
    [(), ("streams=redis", "world.trainer_ranks=2"), ("schedule=conventional",)],
    ids=["files", "redis and two ranks", "conventional"],
)
@pytest.mark.long
def test_where_a_rank_is_killed_the_run_goes_on_from_its_last_checkpoint(tmp_path, settings):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=7)
    launcher = start(run, *SHORT, *gate.settings, *settings)
    wait_for_record(run, "trainer_events", CheckpointSaved)
    hit(run, "pipelinerl.trainer", signal.SIGKILL, after_steps=6)
    gate.open()
    assert_went_on(run, launcher)
    (resumed,) = events(run, Resumed)
    assert resumed.version >= 5 and resumed.version % 5 == 0


@pytest.mark.long
@pytest.mark.parametrize("module", ["pipelinerl.trainer", "pipelinerl.actor", "pipelinerl.preprocessor"])
def test_a_worker_that_is_stopped_is_ended_and_begins_again(tmp_path, module):
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=7)
    launcher = start(run, *SHORT, *gate.settings, "world.heartbeat_timeout_s=8", "world.stop_timeout_s=2")
    hit(run, module, signal.SIGSTOP, after_steps=6)
    gate.open()
    err = assert_went_on(run, launcher)
    assert "has been silent for 8 s and is ended; its log may have its stacks" in err


def faulty(tmp_path: Path, fault: str) -> tuple[str, ...]:
    return (
        "objective._target_=tests.hanging_objective.HangingObjective",
        f"+objective.mark={tmp_path}/mark",
        f"+objective.fault={fault}",
        "world.heartbeat_timeout_s=8",
        "world.stop_timeout_s=1",
        "packing.micro_batch_tokens=1000",
    )


@pytest.mark.long
def test_a_rank_that_hangs_leaves_its_stacks_and_the_run_goes_on(tmp_path):
    run = tmp_path / "run"
    launcher = start(run, *SHORT, *faulty(tmp_path, "hang"), "world.trainer_ranks=2")
    err = assert_went_on(run, launcher)
    assert "trainer-0 was silent for 8 s" in err or "trainer-1 was silent for 8 s" in err
    logs = [path.read_text() for path in (run / "logs").glob("trainer-*.log")]
    assert any("Timeout (0:00:08)!" in log and "hanging_objective.py" in log for log in logs)


@pytest.mark.parametrize(("fault", "restarts"), [("fail", 1), ("always", 3)])
@pytest.mark.long
def test_an_error_after_steps_were_made_is_tried_again_but_not_for_ever(tmp_path, fault, restarts):
    run = tmp_path / "run"
    launcher = start(run, *SHORT, *faulty(tmp_path, fault))
    if fault == "fail":
        assert_went_on(run, launcher)
        return
    status, err = finish(launcher)
    assert status == 1 and "ArithmeticError: the fifth batch is too much" in err
    assert len(events(run, Restarted)) == restarts
    assert_accounted(run, ended=False)


@pytest.mark.long
def test_a_seeded_conventional_run_whose_workers_are_killed_is_the_uninterrupted_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    status, err = finish(start(whole, *REPEATABLE))
    assert status == 0, err
    launcher = start(killed, *REPEATABLE)
    for count, module in enumerate(("trainer", "actor", "preprocessor"), start=1):
        closed = sum(isinstance(r, StepClosed) for r in records_so_far(killed, "trainer_events"))
        hit(killed, f"pipelinerl.{module}", signal.SIGKILL, after_steps=closed + 3)
        wait_for_record(killed, "launcher_events", Restarted, count=count)
    status, err = finish(launcher)
    assert status == 0, err
    assert len(events(killed, Restarted)) == 3
    assert steps(killed) == steps(whole) and len(steps(whole)) == 12
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(killed).items())
    rewards = [{(r.problem_id, r.rollout_id[-1]): r.reward for r in trained(run)} for run in (whole, killed)]
    assert rewards[0] == rewards[1]


def killed_in_a_slow_step(run: Path, module: str, *settings: str):
    """Starts a run of which this worker is killed while the fifth step is computed; returns its launcher."""
    launcher = start(run, *settings, *faulty(run.parent, "slow"))
    wait_for((run.parent / "mark").exists)
    os.kill(job_pid(run, module), signal.SIGKILL)
    return launcher


@pytest.mark.long
def test_a_seeded_run_of_which_a_worker_is_killed_while_a_step_is_computed_is_the_uninterrupted_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    status, err = finish(killed_in_a_slow_step(killed, "pipelinerl.preprocessor", *REPEATABLE))
    assert status == 0, err
    status, err = finish(start(whole, *REPEATABLE, *faulty(tmp_path, "slow")))
    assert status == 0, err
    assert len(events(killed, SaveWanted)) == 1
    assert steps(killed) == steps(whole) and len(steps(whole)) == 12
    assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(killed).items())
    assert {*assert_accounted(killed)} == {*assert_accounted(whole)}


@pytest.mark.long
def test_a_run_of_which_the_actor_is_killed_in_the_last_step_ends_with_its_evaluation(tmp_path):
    run = tmp_path / "run"
    launcher = killed_in_a_slow_step(run, "pipelinerl.actor", "max_steps=5", "checkpoint.every=null")
    status, err = finish(launcher)
    assert status == 0, err
    closed = [r.version for r in records(run, "trainer_events") if isinstance(r, StepClosed)]
    assert closed == [1, 2, 3, 4, 5]
    assert {r.version for r in records(run, "actor_events") if isinstance(r, Evaluated)} >= {5}
    assert_accounted(run)


@pytest.mark.long
def test_a_trainer_that_waits_for_a_server_is_not_taken_for_hung(tmp_path):
    """A probe takes 10 s of a worker that may be silent for 3 s."""
    run = tmp_path / "run"
    slow = ("+inference.arguments.token_delay_s=1.25", "probe.max_tokens=8", "probe.every=1")
    status, err = finish(start(run, *slow, "max_steps=2", "world.heartbeat_timeout_s=3", "eval.every=null"))
    assert status == 0, err
    assert events(run, Restarted) == [], err


def records_so_far(run: Path, name: str) -> list:
    return records(run, name) if (run / "streams" / name).exists() else []


@pytest.mark.long
def test_the_demo_learns_although_a_process_of_every_kind_is_killed(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    run, chance = tmp_path / "run", random.Random(SEED)
    launcher = launch(run, "streams=redis")
    targets = ["server-0", "actor", "preprocessor", "trainer-0", "judging", "redis"]
    chance.shuffle(targets)
    news, since = News(run), 0.0
    for target in targets:
        wait_for_steps(news, since, chance.randint(1, 8))
        pid = wait_for(lambda name=target: process(run, name))
        os.kill(pid, signal.SIGKILL)
        print(f"killed after {len(news.steps_since(0))} steps: {target}")
        wait_for(lambda name=target, dead=pid: process(run, name) not in (None, dead))
        since = time.time()
    status, err = finish(launcher)
    print(err)
    assert status == 0, err
    assert_accounted(run)
    again = [name for restarted in events(run, Restarted) for name in restarted.names]
    workers = ["actor", "preprocessor", "trainer-0"]
    assert sorted(again) == sorted([*workers * 3, "judging", "redis"])
    assert len({joined.url for joined in events(run, ServerJoined)}) == 2
    success = [r.success for r in records(run, "actor_events") if isinstance(r, Evaluated)]
    print(f"held-out success {success[0]:.2f} -> {success[-1]:.2f}")
    assert success[-1] >= 0.9


def process(run: Path, name: str) -> int | None:
    return redis_of(run) if name == "redis" else jobs_of(run).get(name)


def wait_for_steps(news: News, since: float, count: int) -> None:
    def made() -> bool:
        news.read()
        return len(news.steps_since(since)) >= count

    wait_for(made)
