"""Runs whose answers are judged in the service: hostile ones, and a service that is lost again and again."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from contracts.records import Evaluated, Rollout, StepClosed
from tests.judging.hostile_answers import CODE
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    job_pid,
    records,
    run_to_the_end,
    start,
    wait_for,
    wait_for_record,
)


def writing(directory: Path, *answers: str) -> list[str]:
    """Returns the overrides of a run on a server that writes these answers."""
    (directory / "answers.json").write_text(json.dumps(answers))
    paths = f"answers: {directory / 'answers.json'}, seeds: {directory / 'seeds'}"
    return ["inference.module=tests.judging.writing_server", f"+inference.arguments={{{paths}}}"]


def rollouts(run: Path) -> list[Rollout]:
    return records(run, "rollouts", "eval_rollouts")


@pytest.mark.long
def test_code_that_a_model_writes_runs_nowhere(tmp_path):
    aim = {"marker": tmp_path / "marker", "victim": tmp_path / "victim", "actor": 1, "port": 9}
    names = ("system", "touch", "open", "subclasses", "environ", "sympify")
    hostile = [f"<answer>{CODE[name].format(**aim)}</answer>" for name in names]
    run = tmp_path / "run"
    of_six = ["domain._target_=tests.judging.domains.SixTasks", "filters=[]", "max_steps=2"]
    summary = run_to_the_end(run, *writing(tmp_path, *hostile), *of_six, "batch_size=16", "eval.problems=6")
    assert summary["optimizer_steps"] == 2 and summary["rollouts_lost"] == 0
    assert not aim["marker"].exists()
    made = rollouts(run)
    assert len({rollout.domain for rollout in made}) == 6
    assert [r for r in made if r.failed or r.reward > 0.1] == []


SETTINGS = {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"}
SETTINGS |= {f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL")}
SLOWLY = ["domain._target_=tests.judging.domains.SlowlyJudged", "+domain.seconds=0.02", "batch_size=16"]


def assert_without_secrets(service: int) -> None:
    for process in (service, psutil.Process(service).children()[0].pid):
        names = {line.partition("=")[0] for line in environment_of(process)}
        assert names <= {"PATH", "LANG", "PYTHONPATH", "HOME", "PIPELINERL_JUDGING"} | SETTINGS


def environment_of(process: int) -> list[str]:
    return Path(f"/proc/{process}/environ").read_text().strip("\0").split("\0")


@pytest.mark.long
def test_a_service_that_is_lost_costs_no_attempt_and_no_second_sample(tmp_path):
    run = tmp_path / "run"
    slowly = [*writing(tmp_path, "even", "odd"), *SLOWLY, "sampling.seeded=true", "max_steps=14"]
    launcher = start(run, *slowly, "checkpoint.every=null")
    steps = 0
    for number, whom in [
        (signal.SIGKILL, "service"),
        (signal.SIGSTOP, "service"),
        (signal.SIGKILL, "template"),
    ]:
        steps += 2
        wait_for_record(run, "trainer_events", StepClosed, steps)
        service = job_pid(run, "pipelinerl.judging")
        assert_without_secrets(service)
        pid = service if whom == "service" else psutil.Process(service).children()[0].pid
        os.kill(pid, number)
        wait_for(lambda pid=pid: not psutil.pid_exists(pid))
        steps = sum(isinstance(r, StepClosed) for r in records(run, "trainer_events"))
    status, err = finish(launcher)
    assert status == 0, err
    assert_accounted(run)
    made = rollouts(run)
    assert [(r.status, r.metrics["retries"]) for r in made if r.failed or r.metrics["retries"]] == []
    seeds = Counter((tmp_path / "seeds").read_text().split())
    del seeds["None"]  # the trainer's probes
    assert seeds.total() >= len(made) > 200
    evaluations = sum(isinstance(record, Evaluated) for record in records(run, "actor_events"))
    assert seeds.total() - len(seeds) == 16 * (
        evaluations - 1
    )  # these ask the same each time, and only these
