"""Evaluation inside whole runs: averages by set, and the server that is pinned for it."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from contracts.records import Evaluated, Pinned, Record, Released, SetResult, StepClosed, WeightsPublished
from tests.forked import Forked
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    launch,
    processes_of,
    records,
    resume,
    run_to_the_end,
    server_pids,
    start,
    wait_for,
    wait_for_record,
)
from tests.step_gate import StepGate

EXAMS = ["domain._target_=tests.exams_domain.Exams", "+eval.attempts_of.hard=4"]
ALONE = "restarts.servers=0"  # the server that is left
PINNED = [*EXAMS, "world.servers=2", "eval.pinned=true", "eval.every=2", "eval.concurrency=8"]

ATTEMPTS = 8 + 8 * 4


def of_kind(run: Path, stream: str, kind: type[Record]) -> list[Record]:
    return [record for record in records(run, stream) if isinstance(record, kind)]


def test_success_is_averaged_by_set_and_recorded_with_its_versions(tmp_path):
    run = tmp_path / "run"
    summary = run_to_the_end(run, *EXAMS, "max_steps=4", "eval.every=2", "sampling.seeded=true")
    evaluations = of_kind(run, "actor_events", Evaluated)
    assert [evaluations[0].version, evaluations[-1].version] == [0, 4]
    assert summary["heldout_success_start"] == evaluations[0].success
    assert evaluations[0].first_version == 0 and evaluations[-1].first_version == 4
    for result in evaluations[0], evaluations[-1]:
        assert result.sets == [
            SetResult(name="easy", problems=8, attempts=1, success=0.5),
            SetResult(name="hard", problems=8, attempts=4, success=0.25),
        ]
        assert (result.success, result.problems, result.failed, result.pinned) == (0.375, 16, 0, False)
    last = summary["evaluations"][-1]
    assert last["sets"]["hard"] == {"success": 0.25, "problems": 8, "attempts": 4, "failed": 0}
    lines = (run / "metrics" / "actor.jsonl").read_text().splitlines()
    (line,) = [line for line in map(json.loads, lines) if line["step"] == 4 and "heldout_success" in line]
    assert (line["heldout_success_easy"], line["heldout_success_hard"]) == (0.5, 0.25)
    assert (line["heldout_first_version"], line["heldout_failed"]) == (4, 0)
    rollouts = records(run, "eval_rollouts")
    assert len({rollout.rollout_id for rollout in rollouts}) == len(rollouts)
    sampled = {r.completions[0].token_ids.tobytes() for r in rollouts if r.rollout_id.startswith("eval-4-1-")}
    assert len(sampled) > 1  # attempts at one problem, seeded each by itself


def test_training_does_not_wait_for_the_evaluation_of_version_0_but_its_end_does(tmp_path):
    run, trained = tmp_path / "run", tmp_path / "trained"
    launcher = start(run, *EXAMS, f"+domain.until={trained}", "eval.concurrency=20", "max_steps=2")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    trained.touch()
    status, err = finish(launcher)
    assert status == 0, err
    first, last = of_kind(run, "actor_events", Evaluated)
    steps = of_kind(run, "trainer_events", StepClosed)
    assert steps[-1].at < first.at < last.at
    assert (first.version, first.first_version) == (0, 0)
    assert (first.failed, first.success) == (0, 0.375)
    assert (last.version, last.first_version, last.last_version) == (2, 2, 2)
    assert_accounted(run)


@pytest.mark.long
def test_what_a_seeded_on_policy_run_trains_does_not_depend_on_the_evaluation_beside_it(tmp_path):
    seeded = ["domain._target_=tests.letters_domain.LettersDomain", "sampling.seeded=true", "max_steps=6"]
    for problems in (1, 64):
        run_to_the_end(
            tmp_path / str(problems), *seeded, "schedule=conventional", f"eval.problems={problems}"
        )
    few, many = (trained_tokens(tmp_path / str(problems)) for problems in (1, 64))
    assert few == many and len(few) == 6 * 32


def trained_tokens(run: Path) -> dict[tuple[str, str], tuple[list[int], bytes]]:
    """The versions and the tokens of each rollout that was trained on."""
    groups = assert_accounted(run)["trained"]
    return {
        (rollout.problem_id, rollout.rollout_id): (
            rollout.versions,
            b"".join(c.token_ids.tobytes() for c in rollout.completions),
        )
        for rollout in records(run, "rollouts")
        if rollout.group_id in groups
    }


@pytest.mark.parametrize("schedule", ["pipeline", pytest.param("async", marks=pytest.mark.long)])
def test_a_pinned_server_keeps_its_weights_while_training_goes_on(tmp_path, schedule):
    run = tmp_path / "run"
    ahead = ["+domain.ahead=256", f"+domain.evaluated={ATTEMPTS}"]  # steps are left when it is over
    held = f"+domain.until={tmp_path}/published"
    launcher = start(run, *PINNED, held, *ahead, f"schedule={schedule}", "eval.every=16", "max_steps=24")
    wait_for_record(run, "trainer_events", WeightsPublished, count=2)
    (tmp_path / "published").touch()
    status, err = finish(launcher)
    assert status == 0, err
    evaluations = of_kind(run, "actor_events", Evaluated)
    beside = [result for result in evaluations if result.pinned]
    assert evaluations[0].pinned and evaluations[0].version == 0 and not evaluations[-1].pinned
    assert all(result.first_version == result.last_version == result.version for result in beside)
    assert all(result.failed == 0 and result.success == 0.375 for result in beside)
    pins, releases = of_kind(run, "actor_events", Pinned), of_kind(run, "actor_events", Released)
    assert [pin.server for pin in pins] == [release.server for release in releases]
    published = of_kind(run, "trainer_events", WeightsPublished)
    took_part = [pins[0].server in p.servers for p in published]
    assert [p.version for p in published] == list(range(25))
    assert took_part[0] and not took_part[1]
    assert True in took_part[took_part.index(False) :]  # it came back in
    rollouts = [r for r in records(run, "eval_rollouts") if r.versions == [beside[0].version]]
    assert len(rollouts) == ATTEMPTS
    assert {rollout.completions[0].server for rollout in rollouts} == {pins[0].server}
    assert_accounted(run)


@pytest.mark.long
def test_a_pinned_server_that_dies_costs_its_attempts_and_nothing_else(tmp_path):
    run, launcher, servers, gate = start_and_wait_for_a_pinned_evaluation(tmp_path, ALONE)
    os.kill(servers[of_kind(run, "actor_events", Pinned)[0].server], signal.SIGKILL)
    gate.open()
    (tmp_path / "acted").touch()
    status, err = finish(launcher)
    assert status == 0, err
    cut = next(result for result in of_kind(run, "actor_events", Evaluated) if result.pinned)
    assert 0 < cut.failed < ATTEMPTS and cut.failed == sum(of.failed for of in cut.sets)
    assert cut.success < 0.375
    assert len(of_kind(run, "trainer_events", WeightsPublished)[-1].servers) == 1
    assert of_kind(run, "actor_events", Evaluated)[-1].version == 30
    assert_accounted(run)


@pytest.mark.long
def test_a_pinned_server_trains_again_when_no_other_is_left(tmp_path):
    run, launcher, servers, gate = start_and_wait_for_a_pinned_evaluation(tmp_path, ALONE)
    pinned = of_kind(run, "actor_events", Pinned)[0].server
    (other,) = of_kind(run, "trainer_events", WeightsPublished)[-1].servers
    os.kill(servers[other], signal.SIGKILL)
    gate.open()
    why = r"is called off: (there is no other server left|http\S+ was given version)"  # whoever notices first
    wait_for(lambda: re.search(why, (run / "logs" / "actor.log").read_text()))
    (tmp_path / "acted").touch()
    status, err = finish(launcher)
    assert status == 0, err
    assert of_kind(run, "trainer_events", WeightsPublished)[-1].servers == [pinned]
    assert [result.version for result in of_kind(run, "actor_events", Evaluated)] == [30]
    assert_accounted(run)


@pytest.mark.long
def test_a_run_that_stopped_with_a_pinned_server_is_resumed_with_all(tmp_path):
    run, launcher, _, gate = start_and_wait_for_a_pinned_evaluation(tmp_path)
    launcher.kill()
    finish(launcher)
    gate.open()
    (tmp_path / "acted").touch()
    before = len(of_kind(run, "trainer_events", WeightsPublished))
    wait_for(lambda: processes_of(run) == [])
    status, err = finish(resume(run, "eval.every=null", "eval.pinned=false"))
    assert status == 0, err
    published = of_kind(run, "trainer_events", WeightsPublished)[before:]
    assert published and all(len(p.servers) == 2 for p in published)
    assert_accounted(run)


@pytest.mark.long
def test_what_is_due_at_the_version_that_a_run_is_resumed_with_is_evaluated_once(tmp_path):
    run = tmp_path / "run"
    run_to_the_end(run, *EXAMS, "max_steps=4", "checkpoint.every=2")
    for version, every, steps in ((2, 2, 20), (20, 20, 38)):
        settings = [f"resume={version}", f"eval.every={every}", f"max_steps={steps}"]
        status, err = finish(launch(run, *settings))
        assert status == 0, err
    summary = json.loads((run / "summary.json").read_text())
    versions = [result["version"] for result in summary["evaluations"]]
    assert versions[:2] == [0, 2] and versions[-2:] == [20, 38] and len(set(versions)) == len(versions)


def start_and_wait_for_a_pinned_evaluation(
    tmp_path: Path, *overrides: str
) -> tuple[Path, Forked, dict[str, int], StepGate]:
    """The run's directory, its launcher, the process of each server, and the gate of its steps.

    No further attempt ends in it before there is a file `acted`.
    """
    run = tmp_path / "run"
    gate = StepGate(tmp_path, steps=4)
    held = ["+domain.free=4", f"+domain.until={tmp_path}/acted"]
    launcher = start(run, *PINNED, *held, *gate.settings, "max_steps=30", *overrides)
    wait_for_record(run, "trainer_events", WeightsPublished, count=2)
    command_lines = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in server_pids(run)}
    servers = {
        url: next(pid for pid, line in command_lines.items() if url.rsplit(":")[-1] in line)
        for url in of_kind(run, "trainer_events", WeightsPublished)[0].servers
    }
    wait_for(lambda: records(run, "eval_rollouts"))
    return run, launcher, servers, gate
