"""What a resumed run takes up again is decided by the ledger, the rollouts and the version alone."""

import json
import os
from concurrent.futures import Future
from pathlib import Path

import pytest

from contracts.records import (
    ActorStopped,
    DropReason,
    Evaluated,
    Failure,
    MicroBatchRow,
    Resumed,
    SamplerState,
    Settled,
    Started,
    StepClosed,
    VersionSpan,
)
from contracts.trainer import SaveHandle
from extensions.tools.replay import trained_rows
from pipelinerl.config import ReferenceConfig, StopAtConfig
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.problems import check_same, keep_problems, problems_of
from pipelinerl.launcher.resume import check_reference_kept, choose, launcher_events, resume, sort_groups
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.rollouts.retention import SamplerStates
from pipelinerl.streams.events import (
    EVENT_STREAMS,
    FRESH_RUN,
    NEEDED_TO_RESUME,
    latest_resumption,
    recorded,
    recorded_events,
    valid_results,
)
from pipelinerl.streams.files import FileStreams
from pipelinerl.training.checkpoint_saver import CheckpointSaver
from pipelinerl.training.checkpoints import START, Checkpoints, Position
from tests.builders import completion, rollout
from tests.limits import HANG_S
from tests.samplers.domains import Labelled

SIZE = 2


def started(group: int) -> Started:
    return Started(at=1.0, group_id=group, rollouts=SIZE, draw=group, problem=100 + group)


def settled(*groups: int, reason: DropReason | None = None, version: int | None = None) -> Settled:
    size = SIZE * len(groups)
    return Settled(at=1.0, group_ids=list(groups), rollouts=size, reason=reason, version=version)


def evaluated(version: int, last: int | None = None) -> Evaluated:
    last = version if last is None else last
    return Evaluated(
        at=1.0, version=version, problems=1, success=0.5, first_version=version, last_version=last
    )


def resumed(version: int, **changes: object) -> Resumed:
    values = {name: getattr(FRESH_RUN, name) for name in FRESH_RUN.__struct_fields__}
    return Resumed(**values | {"version": version} | changes)


def accounts(*events) -> GroupAccounts:
    ledger = GroupAccounts()
    for event in events:
        ledger.observe(event)
    return ledger


# --- the ledger --------------------------------------------------------------------------------


def test_going_back_undoes_what_was_trained_above_the_version_and_no_more():
    ledger = accounts(
        *map(started, range(6)),
        settled(0, version=1),
        settled(1, version=2),
        settled(2, version=3),
        settled(3, reason=DropReason.NONFINITE, version=3),
        settled(4, reason=DropReason.ZERO_ADVANTAGE),
        ActorStopped(),
    )
    assert ledger.unsettled(version=2) == [2, 3, 5]
    ledger.observe(resumed(2, rolled_back=[2], interrupted=[5]))
    summary = ledger.summary()
    assert summary["rollouts_trained"] == 2 * SIZE
    assert summary["rollouts_dropped"] == {"interrupted": SIZE, "rolled_back": SIZE, "zero_advantage": SIZE}
    assert {type(reason) for reason in summary["rollouts_dropped"]} == {str}  # as they are printed
    assert summary["rollouts_in_flight"] == SIZE and summary["accounting_errors"] == []
    ledger.observe(settled(3, version=3))
    ledger.observe(ActorStopped())
    assert ledger.summary()["rollouts_trained"] == 3 * SIZE and ledger.errors() == []


def test_draws_that_no_group_decided_are_found_in_order_until_another_group_decides_them():
    ledger = accounts(
        *map(started, range(4)), settled(1, version=1), resumed(1, interrupted=[3], rolled_back=[0])
    )
    assert ledger.lost_draws(set()) == [(0, 100), (3, 103)]
    assert ledger.lost_draws({2}) == [(0, 100), (2, 102), (3, 103)]
    ledger.observe(Started(group_id=4, rollouts=SIZE, draw=0, problem=100))
    assert ledger.lost_draws(set()) == [(3, 103)]
    ledger.observe(settled(4, reason=DropReason.TRAINING_DONE))
    assert ledger.lost_draws(set()) == [(0, 100), (3, 103)]


# --- groups -----------------------------------------------------------------------------------


def sampled_by(group: int, member: int, *versions: int):
    spans = [VersionSpan(version, i, i + 1) for i, version in enumerate(versions)]
    return rollout(group, member, completions=[completion([1], list(versions), spans=spans)])


def test_whole_groups_of_known_weights_are_replayed():
    rollouts = [
        sampled_by(0, 0, 3, 4),
        sampled_by(1, 0, 4, 4),
        sampled_by(0, 1, 4, 4),
        sampled_by(2, 0, 1, 1),
        sampled_by(2, 1, 4, 5),
        rollout(3, 0, completions=[], status="failed:VerifierBroke", failure=Failure.DOMAIN),
        rollout(3, 1, completions=[], status="failed:server_too_large", failure=Failure.TOO_LONG),
        sampled_by(5, 0, 3, 3),
        rollout(5, 1, completions=[], status="failed:server_connection", failure=Failure.SERVER),
        sampled_by(6, 0, 3, 3),
        rollout(6, 1, completions=[], status="failed:judge", failure=Failure.JUDGE),
        sampled_by(9, 0, 9, 9),
    ]
    sizes = {group: SIZE for group in range(7)}
    replayed, interrupted, rolled_back = sort_groups(sizes, iter(rollouts), version=4)
    assert (replayed, interrupted, rolled_back) == ([0, 3], [1, 4, 5, 6], [2])


# --- streams and checkpoints ------------------------------------------------------------------


def saved(checkpoints: Checkpoints, *versions: int) -> list[int]:
    """Saves checkpoints, of which two are kept; returns the oldest version that each left."""
    oldest = []
    for version in versions:
        checkpoints.worker(version).mkdir(parents=True)
        oldest.append(checkpoints.complete(Position(version, 10 * version), keep=2).version)
    return oldest


def test_a_resumption_is_one_record_and_events_are_read_life_by_life(tmp_path):
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    assert latest_resumption(streams) == FRESH_RUN
    actor, trainer = streams.writer("actor_events"), streams.writer("trainer_events")
    for group in range(3):
        actor.append(started(group))
    actor.append(SamplerState(draws=2, state={"epoch": 0, "position": 2}))
    for version in (1, 2):
        trainer.append(closed(version))
        trainer.append(settled(version - 1, version=version))
    rollouts = streams.writer("rollouts")
    for member in range(SIZE):
        rollouts.append(sampled_by(1, member, 1))
    for writer in (actor, trainer, rollouts):
        writer.close()
    launcher = launcher_events(streams)
    first = resume(streams, launcher, checkpoints, Position(version=1, rollouts_offset=0))
    assert (first.replayed, first.interrupted, first.rolled_back) == ([1], [2], [])
    assert (first.next_group, first.draws, first.redraws) == (3, 3, [(2, 102)])
    assert first.sampler.draws == 2
    assert latest_resumption(streams) == first
    again = streams.writer("trainer_events")
    again.append(closed(2))
    again.append(settled(1, version=2))
    again.close()
    events = list(recorded_events(streams))
    assert events.index(first) == 8 and events[-1] == settled(1, version=2)
    assert accounts(*events).errors() == []
    second = resume(streams, launcher, checkpoints, Position(version=2, rollouts_offset=0))
    assert (second.replayed, second.interrupted, second.redraws) == ([], [], [(2, 102)])


def sampler_of(streams: FileStreams, path: Path) -> SamplerState | None:
    launcher = launcher_events(streams)
    resumed = resume(streams, launcher, Checkpoints(path), Position(version=0, rollouts_offset=0))
    launcher.close()
    return resumed.sampler


def test_the_sampler_goes_on_from_its_newest_state_and_older_states_do_not_stay(tmp_path):
    """First the state that earlier code recorded; then those of a stream of their own, over two launches."""
    streams = FileStreams(tmp_path / "streams", segment_bytes=4096)
    assert sampler_of(streams, tmp_path) is None
    actor = streams.writer("actor_events")
    actor.append(SamplerState(draws=1, state={}))
    actor.close()
    assert sampler_of(streams, tmp_path).draws == 1
    for launch in range(2):
        writer = streams.writer("sampler_states")
        states = SamplerStates(writer)
        for draws in range(10):
            states.append(SamplerState(draws=100 * launch + draws, state={"order": [*range(2000)]}))
        writer.close()
        assert sampler_of(streams, tmp_path).draws == 100 * launch + 9
        left = [state.draws for state in recorded(streams, "sampler_states")]
        assert left == [100 * launch + 8, 100 * launch + 9]


def test_results_of_weights_that_are_made_again_do_not_count(tmp_path):
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    trainer, actor = streams.writer("trainer_events"), streams.writer("actor_events")
    for version in range(1, 5):
        trainer.append(closed(version))
    results = [evaluated(0), evaluated(1), evaluated(2, last=3), evaluated(4)]
    for result in results:
        actor.append(result)
    for writer in (trainer, actor):
        writer.close()
    assert valid_results(streams) == results
    launcher = launcher_events(streams)
    resume(streams, launcher, checkpoints, Position(version=2, rollouts_offset=0))
    assert valid_results(streams) == results[:2]
    again = streams.writer("actor_events")
    again.append(evaluated(2))
    again.close()
    assert valid_results(streams) == [*results[:2], evaluated(2)]
    resume(streams, launcher, checkpoints, START)
    assert valid_results(streams) == []


def test_streams_that_lost_what_a_checkpoint_was_made_of_are_not_resumed_from_it(tmp_path):
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    trainer = streams.writer("trainer_events")
    trainer.append(closed(1))
    trainer.close()
    launcher = launcher_events(streams)
    for unmade in (Position(version=2, rollouts_offset=0), Position(version=1, rollouts_offset=5)):
        with pytest.raises(PlanError, match=r"they end with version 1; resume=VERSION resumes"):
            resume(streams, launcher, checkpoints, unmade)
    assert latest_resumption(streams) == FRESH_RUN
    assert resume(streams, launcher, checkpoints, Position(version=1, rollouts_offset=0)).version == 1


def test_a_run_that_is_alive_is_not_resumed_and_keeps_its_checkpoints(tmp_path):
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    saved(checkpoints, 5)
    launcher, held = launcher_events(streams), streams.writer("rows")
    with pytest.raises(PlanError, match="still alive"):
        resume(streams, launcher, checkpoints, START)
    with pytest.raises(PlanError, match="still alive"):
        launcher_events(streams)
    held.close()
    assert [p.version for p in checkpoints.complete_checkpoints()] == [5]
    checkpoints.worker(7).mkdir(parents=True)  # cut short
    resume(streams, launcher, checkpoints, START)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_checkpoints_are_whole_when_declared_and_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    oldest = saved(checkpoints, 4, 8, 12)
    checkpoints.worker(16).mkdir(parents=True)  # cut short
    assert oldest == [4, 4, 8]
    assert checkpoints.complete_checkpoints() == [Position(8, 80), Position(12, 120)]
    assert not checkpoints.worker(4).parent.exists()
    assert choose(tmp_path, checkpoints, True, max_steps=99).version == 12
    assert choose(tmp_path, checkpoints, 8, max_steps=99).rollouts_offset == 80
    assert choose(tmp_path, checkpoints, 0, max_steps=99) == START
    with pytest.raises(PlanError, match="resume=16: there are checkpoints of versions 0, 8, 12"):
        choose(tmp_path, checkpoints, 16, max_steps=99)
    with pytest.raises(PlanError, match="has made 12 steps and max_steps is 11; raise it to resume"):
        choose(tmp_path, checkpoints, True, max_steps=11)


def test_a_run_that_stopped_between_its_last_step_and_its_end_goes_on_to_its_end(tmp_path):
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    saved(checkpoints, 3)
    actor = streams.writer("actor_events")
    actor.append(started(0))
    assert choose(tmp_path, checkpoints, True, max_steps=3).version == 3
    actor.append(settled(0, reason=DropReason.TRAINING_DONE))
    actor.append(ActorStopped())
    assert choose(tmp_path, checkpoints, True, max_steps=3).version == 3  # its model is not exported
    checkpoints.final.mkdir()
    with pytest.raises(PlanError, match="has made 3 steps and max_steps is 3; raise it to resume"):
        choose(tmp_path, checkpoints, True, max_steps=3)


def test_a_solved_run_is_resumed_only_where_it_is_not_solved_yet(tmp_path):
    streams = FileStreams(tmp_path / "streams")
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 2, 5)
    checkpoints.final.mkdir()
    actor = streams.writer("actor_events")
    for event in (evaluated(0), evaluated(2), evaluated(4), ActorStopped()):
        actor.append(event)

    def chosen(at: bool | int, stop_at: StopAtConfig | None) -> int:
        return choose(tmp_path, checkpoints, at, max_steps=9, stop_at=stop_at).version

    solved = StopAtConfig(success=0.5, evaluations=3)
    with pytest.raises(PlanError, match="the run was solved at step 4, with held-out success 0.50; stop_at="):
        chosen(True, solved)
    assert chosen(True, StopAtConfig(success=0.6, evaluations=3)) == 5
    assert chosen(True, None) == 5
    assert chosen(2, solved) == 2  # the third evaluation is undone


@pytest.mark.parametrize(
    ("version", "every", "needed"), [(7, 4, None), (8, 8, None), (7, None, None), (7, 5, 5), (3, 4, 0)]
)
def test_a_run_resumes_where_the_weights_of_its_reference_are_kept(tmp_path, version, every, needed):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.reference(4).parent.mkdir(parents=True)
    checkpoints.reference(4).touch()
    reference = ReferenceConfig(module="m", renew_every=every)
    if needed is None:
        check_reference_kept(checkpoints, version, reference)
        return
    says = (
        f"renew_every={every}: to resume from version {version}, the weights of version {needed} are needed"
    )
    with pytest.raises(PlanError, match=says):
        check_reference_kept(checkpoints, version, reference)


@pytest.mark.parametrize("content", [b"", bytes(40), b'{"version": 8, "roll', b'{"version": 8}', b"[]"])
def test_a_checkpoint_whose_position_is_damaged_is_not_complete(tmp_path, content, caplog):
    checkpoints = Checkpoints(tmp_path)
    saved(checkpoints, 4, 8)
    damaged = tmp_path / "checkpoints" / "00000008"
    (damaged / "position.json").write_bytes(content)
    assert choose(tmp_path, checkpoints, True, max_steps=99) == Position(4, 40)
    checkpoints.discard_after(4)
    assert not damaged.exists()
    assert f"{damaged} is removed: its position.json is damaged" in caplog.text


def test_a_checkpoint_and_what_it_needs_are_on_the_disk_before_it_is_declared(tmp_path, monkeypatch):
    steps: list[str] = []

    def fsync(file: int) -> None:
        steps.append(Path(f"/proc/self/fd/{file}").resolve().relative_to(tmp_path).as_posix())

    def replace(source: Path, target: Path) -> None:
        steps.append(f"declared {target.name}")
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    streams, checkpoints = FileStreams(tmp_path / "streams"), Checkpoints(tmp_path)
    for name in NEEDED_TO_RESUME:
        streams.writer(name).append(closed(1))
    shard = checkpoints.worker(4) / "shards" / "0.pt"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"weights")
    writing = Writing()
    writing.written.set_result(None)
    saver = CheckpointSaver(checkpoints, 2, lambda _: None, lambda: streams.sync(NEEDED_TO_RESUME))
    saver.begin(Position(4, 40), writing)
    saver.finish()
    declared = steps.index("declared position.json")
    segments = {f"streams/{name}/{0:020d}.records" for name in NEEDED_TO_RESUME}
    of_checkpoint = {f"checkpoints/00000004{path}" for path in ("", "/worker", "/worker/shards/0.pt")}
    assert segments | of_checkpoint | {"streams", "checkpoints", "."} <= {*steps[:declared]}
    assert steps[declared - 1].startswith("checkpoints/00000004/.position.json.")
    assert steps[declared + 1] == "checkpoints/00000004"


class Writing(SaveHandle):
    def __init__(self):
        self.written = Future()

    def wait(self) -> None:
        self.written.result(timeout=HANG_S)


def test_a_checkpoint_is_announced_once_it_is_whole_and_one_that_fails_ends_the_run(tmp_path):
    checkpoints, announced, writing = Checkpoints(tmp_path), [], Writing()
    saver = CheckpointSaver(checkpoints, 2, announced.append, sync_streams=lambda: None)
    checkpoints.worker(4).mkdir(parents=True)
    saver.begin(Position(4, 40), writing)
    saver.poll()
    assert announced == [] and checkpoints.complete_checkpoints() == []
    writing.written.set_result(None)
    saver.finish()
    assert [(saved.version, saved.rollouts_offset) for saved in announced] == [(4, 40)]
    assert json.loads((tmp_path / "checkpoints/00000004/position.json").read_text())["version"] == 4
    saver.poll()
    assert len(announced) == 1
    failing = Writing()
    saver.begin(Position(8, 80), failing)
    failing.written.set_exception(OSError("no space left on device"))
    with pytest.raises(OSError, match="no space left"):
        saver.finish()
    assert len(announced) == 1


# --- replay -----------------------------------------------------------------------------------


def row(step: int, index: int, closes: bool, launch: int) -> MicroBatchRow:
    return MicroBatchRow(step=step, index=index, micro_batches=[], closes_step=closes, rollouts_offset=launch)


def test_what_is_replayed_of_a_resumed_run_are_the_steps_that_count(tmp_path):
    streams = FileStreams(tmp_path / "streams")
    rows, trainer = streams.writer("rows"), streams.writer("trainer_events")
    launcher = launcher_events(streams)
    first = [(0, 0, True), (1, 0, False), (1, 1, True), (2, 0, False), (2, 1, True), (3, 0, False)]
    for step in first:
        rows.append(row(*step, launch=1))
    for version in (1, 2, 3):
        trainer.append(closed(version))
    ends = {name: 0 for name in EVENT_STREAMS} | {"trainer_events": trainer.end}
    launcher.append(resumed(1, ends=ends))
    for step in [(1, 0, True), (2, 0, False), (2, 1, True), (3, 0, False)]:
        rows.append(row(*step, launch=2))
    for version in (2, 3):
        trainer.append(closed(version))
    replayed = [(r.step, r.index, r.rollouts_offset) for r in trained_rows(streams)]
    assert replayed == [(0, 0, 1), (1, 0, 2), (2, 0, 2), (2, 1, 2)]


def closed(version: int) -> StepClosed:
    return StepClosed(at=1.0, version=version, rollouts=2, tokens=1, lag_histogram={})


@pytest.mark.parametrize("other", [Labelled(6), Labelled(4)])
def test_a_run_is_resumed_with_the_problems_that_it_began_with_alone(tmp_path, other):
    begun = problems_of(Labelled(5))
    check_same(tmp_path, begun)  # a run that has not kept them
    keep_problems(tmp_path, begun)
    check_same(tmp_path, problems_of(Labelled(5, "with other messages")))
    with pytest.raises(
        PlanError, match=f"began with 5 .*{begun.digest}.* now has {other.train_size} .*digest"
    ):
        check_same(tmp_path, problems_of(other))
