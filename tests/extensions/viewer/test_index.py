"""The index of rollouts: it says of each what its record says, after kills, trims and resumptions too."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from contracts.records import Resumed, Settled, Started, encode
from extensions.viewer.index import Filters, Index, feed
from extensions.viewer.index import index as index_module
from extensions.viewer.index.queries import Queries
from extensions.viewer.index.run_state import RunState
from extensions.viewer.index.schema import open_to_read
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.streams.events import FRESH_RUN, recorded_events
from pipelinerl.streams.files import FileStreams
from tests.extensions.viewer.recorded_run import LAUNCHER, RecordedRun, member_of, published, small_run

EVERYTHING = Filters()


def built(run_dir: Path, path: Path, state: RunState | None = None) -> Queries:
    index = Index(path, FileStreams(run_dir / "streams"), state or RunState())
    while index.advance():
        pass
    assert index.progress.is_complete and index.damage is None
    index.close()
    return Queries(open_to_read(path))


def all_rows(queries: Queries, filters: Filters = EVERYTHING) -> list[sqlite3.Row]:
    rows = []
    found = queries.page(filters)
    rows += found.rows
    while found.next:
        found = queries.page(filters, found.next)
        rows += found.rows
    return rows


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[RecordedRun, Queries]:
    """A run that has ended, and its index."""
    directory = tmp_path_factory.mktemp("small")
    run = small_run(directory / "run")
    return run, built(run.run_dir, directory / "i")


def test_each_row_is_what_the_records_say(small):
    run, queries = small
    rows = {row["rollout_id"]: row for row in all_rows(queries)}
    records = [entry.record for entry in run.streams.reader("rollouts").read(timeout_s=0)]
    assert rows.keys() == {record.rollout_id for record in records} and len(records) == 32
    for record in records:
        row = rows[record.rollout_id]
        assert encode(run.streams.reader("rollouts").at(row["offset"])) == encode(record)
        for name in ("group_id", "domain", "status", "reward", "started_at", "finished_at"):
            assert row[name] == getattr(record, name), name
        assert row["problem"] == record.problem_id
        assert row["tokens"] == record.sampled_tokens
        assert [row["first_version"], row["last_version"]] == [record.versions[0], record.versions[-1]]
        is_trained = record.group_id % 2 == 0
        assert row["outcome"] == ("trained" if is_trained else "dropped: zero_advantage")
        assert row["step"] == (record.versions[0] if is_trained else None)
        assert row["lag"] == (0 if is_trained else None)  # its oldest tokens are of the step's own weights
        assert row["advantage"] == (pytest.approx(record.reward - 0.5) if is_trained else None)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        (Filters(version_from=3, version_to=3), lambda r: 3 in r.versions),
        (Filters(reward_to=0.5), lambda r: r.reward <= 0.5),
        (Filters(outcome="trained", reward_from=1), lambda r: r.group_id % 2 == 0 and r.reward == 1),
        (Filters(mixed=True), lambda r: r.group_id % 2 == 0),
        (Filters(status="failed:timeout"), lambda r: False),
        (Filters(domain="sums", length_from=6, length_to=6), lambda r: True),
        (Filters(length_from=7), lambda r: False),
        (Filters(outcome="in flight"), lambda r: False),
        (Filters(stream="held-out"), lambda r: False),
    ],
)
@pytest.mark.parametrize("sort", ["mixed first", "newest", "longest", "shortest", "best", "worst"])
def test_filters_find_what_they_say_in_the_order_that_is_asked_for(small, filters, wanted, sort):
    run, queries = small
    rows = all_rows(queries, filters.model_copy(update={"sort": sort}))
    records = [entry.record for entry in run.streams.reader("rollouts").read(timeout_s=0)]
    assert {row["rollout_id"] for row in rows} == {record.rollout_id for record in records if wanted(record)}
    key = {"newest": "offset", "best": "reward", "worst": "reward"}.get(sort, "tokens")
    of_groups = [(row["group_id"] % 2 == 0, row["group_id"], row["offset"]) for row in rows]
    values = of_groups if sort == "mixed first" else [row[key] for row in rows]
    assert values == sorted(values, reverse=sort not in ("shortest", "worst"))


def test_pages_visit_each_rollout_once_while_others_are_appended(tmp_path):
    run = RecordedRun(tmp_path / "run")
    run.append("rollouts", *(member_of(group, 0, 0, float(group % 3)) for group in range(160)))
    state = RunState()
    index = Index(tmp_path / "i", run.streams, state)
    while index.advance():
        pass
    for sort in ("newest", "best", "mixed first"):
        queries = Queries(open_to_read(tmp_path / "i"))
        before = {row["offset"] for row in all_rows(queries)}
        found = queries.page(Filters(sort=sort))
        seen = [row["offset"] for row in found.rows]
        while found.next:
            run.append("rollouts", *(member_of(900, member, 0, 2.0) for member in range(7)))
            while index.advance():
                pass
            found = queries.page(Filters(sort=sort), found.next)
            seen += [row["offset"] for row in found.rows]
        assert len(seen) == len(set(seen)) and before <= set(seen)


BUILD = """
import sys
from pathlib import Path
from pipelinerl.streams.files import FileStreams
from extensions.viewer.index import Index
from extensions.viewer.index.run_state import RunState
index = Index(Path(sys.argv[2]), FileStreams(Path(sys.argv[1]) / "streams"), RunState())
while index.advance():
    print(index.progress.rollouts, flush=True)
"""


def test_a_builder_that_is_killed_leaves_an_index_that_another_one_completes(tmp_path):
    run = RecordedRun(tmp_path / "run")
    run.append("rollouts", *(member_of(group, 0, group % 9, 1.0) for group in range(20_000)))
    command = [sys.executable, "-c", BUILD, str(run.run_dir), str(tmp_path / "i")]
    building = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert building.stdout.readline()
    os.kill(building.pid, signal.SIGKILL)
    building.communicate()
    begun = open_to_read(tmp_path / "i").execute("SELECT count(*) FROM rollouts").fetchone()[0]
    assert 0 < begun < 20_000
    rows = all_rows(built(run.run_dir, tmp_path / "i"))
    assert list(map(tuple, rows)) == list(map(tuple, all_rows(built(run.run_dir, tmp_path / "fresh"))))
    assert len(rows) == 20_000


@pytest.mark.parametrize("damage", [b"no database", b""])
def test_an_index_that_is_damaged_or_of_another_schema_is_made_anew(tmp_path, damage):
    run = small_run(tmp_path / "run")
    built(run.run_dir, tmp_path / "i")
    if damage:
        (tmp_path / "i").write_bytes(damage)
    else:
        sqlite3.connect(tmp_path / "i").execute("PRAGMA user_version = 999").connection.commit()
    assert len(all_rows(built(run.run_dir, tmp_path / "i"))) == 32


def resumed_run(run_dir: Path) -> RecordedRun:
    """A run that was stopped after two steps, resumed from version 1, and made the second step again."""
    run = RecordedRun(run_dir)
    run.begin()
    for version in range(2):
        members = [member_of(version, member, version, float(member)) for member in range(2)]
        run.step(version, [members], trained=1)
    run.append("actor_events", Started(group_id=2, rollouts=2, draw=2, problem=2, version=2))
    names = ("actor_events", "preprocessor_events", "trainer_events")
    ends = {name: run.end_of(name) for name in names}
    resumed = msgspec.structs.replace(FRESH_RUN, version=1, ends=ends, interrupted=[2], next_group=3, at=1.0)
    run.append(LAUNCHER, resumed)
    run.append("trainer_events", Settled(group_ids=[1], rollouts=2, version=2), published(2))
    return run


def test_a_resumption_undoes_in_the_index_what_it_undoes_in_the_ledger(tmp_path):
    run = resumed_run(tmp_path / "run")
    state = RunState()
    built(run.run_dir, tmp_path / "i", state)
    accounts = GroupAccounts()
    for event in recorded_events(run.streams):
        if isinstance(event, Started | Settled | Resumed):
            accounts.observe(event)
    assert accounts.undone == {1: [2]}
    assert state.accounts.summary() == accounts.summary()
    assert state.accounts.undone == accounts.undone
    assert [state.outcome_of(group) for group in range(3)] == ["trained", "trained", "dropped: interrupted"]
    assert state.dropped == {"interrupted": 1}


@pytest.mark.parametrize(("module", "limit"), [(feed, "MOST"), (index_module, "BATCH")])
def test_small_batches_make_the_same_index(tmp_path, monkeypatch, module, limit):
    run = resumed_run(tmp_path / "run")
    at_once = RunState()
    wanted = [tuple(row) for row in all_rows(built(run.run_dir, tmp_path / "at once", at_once))]
    monkeypatch.setattr(module, limit, 1)
    bit_by_bit = RunState()
    found = [tuple(row) for row in all_rows(built(run.run_dir, tmp_path / "bit by bit", bit_by_bit))]
    assert found == wanted and len(found) > 1
    assert bit_by_bit.accounts.summary() == at_once.accounts.summary()
    assert bit_by_bit.resumptions == at_once.resumptions != []


def test_events_that_are_damaged_before_a_resumption_are_not_waited_for(tmp_path):
    run = resumed_run(tmp_path / "run")
    run.close()
    (segment,) = (run.run_dir / "streams" / "trainer_events").glob("*.records")
    damaged = bytearray(segment.read_bytes())
    damaged[14] ^= 1
    segment.write_bytes(damaged)
    index = Index(tmp_path / "i", FileStreams(run.run_dir / "streams"), RunState())
    looks = 0
    while index.advance():
        looks += 1
        assert looks < 10
    assert "trainer_events" in index.damage


def test_what_is_settled_later_is_found_later(tmp_path):
    run = RecordedRun(tmp_path / "run")
    run.append("actor_events", Started(group_id=0, rollouts=2, draw=0, problem=0))
    run.append("rollouts", *(member_of(0, member, 0, float(member)) for member in range(2)))
    index = Index(tmp_path / "i", run.streams, RunState())
    queries = Queries(open_to_read(tmp_path / "i"))

    def outcomes() -> list[str | None]:
        while index.advance():
            pass
        return [row["outcome"] for row in all_rows(queries)]

    assert outcomes() == [None, None]
    assert len(all_rows(queries, Filters(outcome="in flight"))) == 2
    run.append("trainer_events", Settled(group_ids=[0], rollouts=2, version=1))
    assert outcomes() == ["trained", "trained"]
    ends = {name: run.end_of(name) for name in ("actor_events", "preprocessor_events", "trainer_events")}
    run.append(LAUNCHER, msgspec.structs.replace(FRESH_RUN, ends=ends, rolled_back=[0], next_group=1))
    assert outcomes() == ["dropped: rolled_back", "dropped: rolled_back"]
