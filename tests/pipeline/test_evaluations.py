"""Evaluation inside whole runs: averages by set, and the server that is pinned for it."""

import json

from contracts.records import Evaluated, Pinned, Released, SetResult, StepClosed, WeightsPublished
from tests.pipeline.runs import (
    assert_accounted,
    finish,
    of_kind,
    records,
    start,
    wait_for_record,
)

EXAMS = ["domain._target_=tests.exams_domain.Exams", "+eval.attempts_of.hard=4"]
PINNED = [*EXAMS, "world.servers=2", "eval.pinned=true", "eval.every=2", "eval.concurrency=8"]

ATTEMPTS = 8 + 8 * 4


def test_success_is_averaged_by_set_and_training_does_not_wait_for_the_evaluation_of_version_0(tmp_path):
    run, trained = tmp_path / "run", tmp_path / "trained"
    held = (f"+domain.until={trained}", "eval.concurrency=20")
    launcher = start(run, *EXAMS, *held, "max_steps=4", "eval.every=2", "sampling.seeded=true")
    wait_for_record(run, "trainer_events", StepClosed, count=2)
    trained.touch()
    status, err = finish(launcher)
    assert status == 0, err
    summary = json.loads((run / "summary.json").read_text())
    evaluations = of_kind(run, "actor_events", Evaluated)
    assert [evaluations[0].version, evaluations[-1].version] == [0, 4]
    assert summary["heldout_success_start"] == evaluations[0].success
    assert evaluations[0].first_version == 0
    assert (evaluations[-1].first_version, evaluations[-1].last_version) == (4, 4)
    assert of_kind(run, "trainer_events", StepClosed)[1].at < evaluations[0].at < evaluations[-1].at
    assert_accounted(run)
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


def test_a_pinned_server_keeps_its_weights_while_training_goes_on(tmp_path):
    run = tmp_path / "run"
    ahead = ["+domain.ahead=256", f"+domain.evaluated={ATTEMPTS}"]  # steps are left when it is over
    held = f"+domain.until={tmp_path}/published"
    launcher = start(run, *PINNED, held, *ahead, "eval.every=16", "max_steps=24")
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
