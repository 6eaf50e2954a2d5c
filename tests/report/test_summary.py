"""The report: what the records of a run add up to, and what breaks the ledger."""

import json
import re

import msgspec
import pytest

from contracts.records import (
    ActorStopped,
    DropReason,
    Evaluated,
    Failure,
    SetResult,
    Settled,
    Started,
    StepClosed,
    VersionSpan,
    WeightsPublished,
)
from pipelinerl.metrics import MetricsWriter
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.report.bottleneck import NOT_RECORDED
from pipelinerl.report.evaluation_table import print_evaluations
from pipelinerl.report.run_totals import RunTotals
from pipelinerl.report.summary import report
from pipelinerl.report.wall_time import Launch
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.report.summarised import summarise


def published(version: int) -> WeightsPublished:
    return WeightsPublished(run="r", version=version, servers=["s"], seconds=0.1, bytes=8, paused_s=0.0)


def evaluated(version: int, success: float, **changes) -> Evaluated:
    values = {"problems": 200, "first_version": version, "last_version": version}
    return Evaluated(version=version, success=success, **values | changes)


def described(version: int, success: float) -> dict:
    whole = {"problems": 200, "failed": 0, "pinned": False, "sets": {}}
    return {"version": version, "first_version": version, "last_version": version, "success": success} | whole


def closed(version: int, lags: dict[int, int], skipped: bool = False) -> StepClosed:
    tokens = sum(lags.values())
    return StepClosed(version=version, rollouts=4, tokens=tokens, lag_histogram=lags, skipped=skipped)


def spans(*edges: tuple[int, int, int]) -> dict:
    return {"spans": [VersionSpan(*edge) for edge in edges]}


@pytest.fixture
def run_dir(tmp_path):
    """Groups of two: 0 and 1 trained, 2 without signal, 3 stale, 4 never settled."""
    streams = FileStreams(tmp_path / "streams")
    names = ("rollouts", "eval_rollouts", "actor_events", "preprocessor_events", "trainer_events")
    rollouts, evaluation, actor, preprocessor, trainer = (streams.writer(name) for name in names)
    trainer.append(published(0))
    actor.append(evaluated(0, 0.4))
    for group_id in range(5):
        actor.append(Started(group_id=group_id, rollouts=2, draw=group_id, problem=0))
        times = {"started_at": 1000.0 + group_id, "finished_at": 1002.0 + group_id}
        overtaken = completion([1], [2, 3, 4], **spans((group_id, 0, 1), (group_id + 1, 1, 3)))
        good = {"completions": [overtaken], "metrics": {"success": 1.0}}
        rollouts.append(rollout(group_id, 0, 1.0, **good, **times))
        why = "VerifierBroke" if group_id == 3 else "timeout"
        kind = Failure.TIMEOUT if why == "timeout" else Failure.DOMAIN
        failed = rollout(group_id, 1, completions=[], status=f"failed:{why}", failure=kind, **times)
        rollouts.append(failed)
    empty_first = completion([1], [2], **spans((0, 0, 0), (8, 0, 1)))
    evaluation.append(rollout(0, completions=[empty_first], started_at=990.0, finished_at=991.0))
    arriving = completion([1], [2, 3], **spans((5, 0, 1), (9, 1, 2)))
    evaluation.append(rollout(1, completions=[arriving], started_at=1005.0, finished_at=1006.0))
    preprocessor.append(Settled(group_ids=[2], rollouts=2, reason=DropReason.ZERO_ADVANTAGE))
    for version, lags in ((1, {0: 6, 1: 2}), (2, {4: 2})):
        trainer.append(closed(version, lags))
        trainer.append(published(version))
        trainer.append(Settled(group_ids=[version - 1], rollouts=2))
    trainer.append(closed(3, {9: 100}, skipped=True))
    preprocessor.append(Settled(group_ids=[3], rollouts=2, reason=DropReason.STALE))
    actor.append(evaluated(2, 0.9))
    metrics = MetricsWriter(tmp_path, "trainer")
    metrics.write(1, logprob_gap_mean_abs=1e-6, logprob_gap_max_abs=3e-6)
    metrics.write(2, logprob_gap_mean_abs=3e-6, logprob_gap_max_abs=2e-6)
    for version, norm in ((1, 0.0), (2, 0.0), (1, 0.5), (9, 0.0)):
        metrics.write(version, grad_norm=norm)
    metrics.write(2, loss=1.0)
    set_times(tmp_path / "metrics" / "trainer.jsonl", 1010.0)
    return tmp_path


def set_times(path, time: float) -> None:
    lines = [json.loads(line) | {"time": time} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_summary_is_what_the_records_say(run_dir):
    assert summarise(run_dir, Launch(985.0, 1045.0)) == {
        "heldout_success_start": 0.4,
        "heldout_success_end": 0.9,
        "evaluations": [described(0, 0.4), described(2, 0.9)],
        "optimizer_steps": 3,
        "steps_without_gradient": 1,
        "steps_skipped": 1,
        "solved_at": None,
        "resumed": 0,
        "streams_cut": [],
        "rollouts_from_version": None,
        "weight_updates": 3,
        "updates_while_generating": 6,  # 1 to 5 into training rollouts, 9 into an evaluation
        "sequences_multi_version": 5,
        "rollouts_started": 10,
        "rollouts_trained": 4,
        "rollouts_dropped": {"stale": 2, "zero_advantage": 2},
        "rollouts_in_flight": 2,
        "rollouts_lost": 0,
        "accounting_errors": [],
        "rollouts_retried": 0,
        "rollouts_out_of_time": 0,
        "rollouts_failed": {"VerifierBroke": 1, "timeout": 4},
        "rollouts_failed_by_infrastructure": 4,
        "lag_mean": pytest.approx(1.0),
        "lag_max": 4,
        "logprob_gap_mean_abs": pytest.approx(2e-6),
        "logprob_gap_max_abs": 3e-6,
        "generation_tokens_per_s": pytest.approx(15 / 10),  # from 1000 to 1010
        "trained_tokens_per_s": pytest.approx(10 / 10),
        "bottleneck": NOT_RECORDED.sentence,
        "bottleneck_measured": None,
        "judging_isolation": None,
        "wall_s": 60.0,
    }
    assert summarise(run_dir)["wall_s"] == 20.0  # from the first evaluation at 990


def test_the_report_writes_the_summary_and_the_picture(run_dir, capsys):
    returned = report(run_dir, FileStreams(run_dir / "streams"), Launch(985.0, 1045.0), verbose=True)
    assert (
        json.loads((run_dir / "summary.json").read_text())
        == returned
        == summarise(run_dir, Launch(985.0, 1045.0)) | {"failed": None}
    )
    assert (run_dir / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "heldout_success_end" in capsys.readouterr().out
    assert not list(run_dir.glob("*.part"))


def test_the_table_shows_each_set_at_its_first_its_best_and_its_last(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    def result(version: int, easy: float, hard: float, **changes) -> Evaluated:
        sets = [
            SetResult(name="easy", problems=20, attempts=1, success=easy),
            SetResult(name="[/hard]", problems=10, attempts=16, success=hard),
        ]
        return evaluated(version, (2 * easy + hard) / 3, problems=30, sets=sets, **changes)

    between = result(20, 0.25, 0.75, last_version=23, failed=3)
    print_evaluations([result(0, 0.5, 0.0), between, result(40, 1.0, 0.5)])
    rows = [re.findall(r"[^│\s][^│]*[^│\s]", line) for line in capsys.readouterr().out.splitlines()]
    assert ["easy", "20", "avg@1", "0.500 (v0)", "1.000 (v40)", "1.000 (v40)"] in rows
    assert ["[/hard]", "10", "avg@16", "0.000 (v0)", "0.750 (v20–23)", "0.500 (v40)"] in rows
    assert ["all", "30", "0.333 (v0)", "0.833 (v40)", "0.833 (v40)"] in rows
    print_evaluations([evaluated(0, 0.25, failed=3)])  # of a stream from before there were sets
    assert "0.250 (v0, 3 failed)" in capsys.readouterr().out


@pytest.mark.parametrize("what_exists", [[], ["streams"], ["streams/rollouts", "metrics"]])
def test_a_run_that_failed_early_has_nulls(tmp_path, what_exists):
    for name in what_exists:
        (tmp_path / name).mkdir(parents=True)
    summary = report(tmp_path, FileStreams(tmp_path / "streams"))
    unknown = {name for name, value in summary.items() if value is None}
    assert unknown == {
        *(
            "failed",
            "heldout_success_start",
            "heldout_success_end",
            "lag_mean",
            "lag_max",
            "wall_s",
            "bottleneck_measured",
            "judging_isolation",
            "rollouts_from_version",
            "solved_at",
        ),
        *("logprob_gap_mean_abs", "logprob_gap_max_abs", "generation_tokens_per_s", "trained_tokens_per_s"),
    }
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["rollouts_started"] == summary["rollouts_lost"] == 0
    assert not (tmp_path / "reward.png").exists()


def test_an_update_that_is_made_again_after_a_resumption_counts_again():
    totals = RunTotals()
    for launch in ("first", "second"):
        for _ in range(2):
            totals.add_rollout(
                rollout(0, run=launch, completions=[completion([1], [2, 3], **spans((0, 0, 1), (1, 1, 2)))])
            )
    assert totals.updates_while_generating == {("first", 1), ("second", 1)}


def test_the_report_says_from_where_on_it_covers_rollouts_that_retention_has_cut(tmp_path, capsys):
    """Group and version g take from second g to second g + 1, and train 10 tokens in the next one."""
    streams = FileStreams(tmp_path / "streams", segment_bytes=4096)
    rollouts, actor, trainer = map(streams.writer, ("rollouts", "actor_events", "trainer_events"))
    actor.append(Started(group_id=0, rollouts=200, draw=0, problem=0))
    offsets = []
    for group_id in range(200):
        times = {"started_at": float(group_id), "finished_at": group_id + 1.0}
        sampled = [completion([1], [2, 3], version=group_id)]
        offsets.append(rollouts.append(rollout(group_id, completions=sampled, **times)))
        step = closed(group_id + 1, {0: 10})
        trainer.append(msgspec.structs.replace(step, at=group_id + 1.5))
    rollouts.trim(offsets[150])
    summary = report(tmp_path, streams)
    first = summary["rollouts_from_version"]
    assert summary["streams_cut"] == ["rollouts"] and 0 < first <= 151
    assert f"since weight version {first}" in " ".join(capsys.readouterr().out.split())
    assert summary["rollouts_started"] == 200 and summary["optimizer_steps"] == 200
    assert summary["generation_tokens_per_s"] == pytest.approx(2)
    assert summary["trained_tokens_per_s"] == pytest.approx(10, rel=0.05)


def ledger(*events) -> dict:
    accounts = GroupAccounts()
    for event in events:
        accounts.observe(event)
    return accounts.summary()


def test_every_way_to_break_the_books_is_named():
    started = [Started(group_id=group_id, rollouts=8, draw=group_id, problem=0) for group_id in range(20)]
    trained = [Settled(group_ids=[group_id], rollouts=8) for group_id in range(20)]
    dropped = Settled(group_ids=[3], rollouts=8, reason=DropReason.STALE)
    assert ledger(*trained, *started)["accounting_errors"] == []  # in any order
    assert ledger(*started, *trained, dropped)["accounting_errors"] == ["1 groups settled twice: 3"]
    assert ledger(*started, *trained, started[3])["accounting_errors"] == ["1 groups started twice: 3"]
    assert ledger(*started[1:], *trained)["accounting_errors"] == ["1 groups settled but never started: 0"]
    assert ledger(*started, *trained[:8])["rollouts_in_flight"] == 96
    lost = ledger(*started, *trained[:8], ActorStopped())
    assert lost["rollouts_lost"] == 96
    assert lost["accounting_errors"] == [
        "12 groups started but never settled: 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, ..."
    ]
    wrong = Settled(group_ids=[19], rollouts=7)
    assert ledger(*started, *trained[:-1], wrong)["accounting_errors"] == [
        "Settled events count 159 rollouts, their groups hold 160"
    ]
