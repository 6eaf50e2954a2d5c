"""A run on Redis shows the same as one in files, and an open viewer does not keep it from resuming."""

import os

import msgspec
import pytest

from contracts.records import Resumed, Started
from extensions.redis_streams.server import RedisServer
from extensions.redis_streams.streams import RedisStreams
from extensions.viewer.runs.own_directory import OwnDirectory
from extensions.viewer.runs.source import Source, StreamsCopy
from pipelinerl.streams.events import FRESH_RUN, recorded_events
from tests.extensions.viewer.recorded_run import LAUNCHER, RecordedRun, member_of, published
from tests.extensions.viewer.viewers import viewing
from tests.pipeline.runs import finish, resume, start

needs_redis = pytest.mark.engines  # a real server


@pytest.fixture
def run(tmp_path):
    """A run whose streams are on a Redis server of its own, which runs."""
    run = RecordedRun(tmp_path / "run", streams={"backend": "redis", "url": None, "run": "name"})
    with RedisServer(run.run_dir / "redis") as server:
        run.streams = RedisStreams(server.url, "name")
        yield run
        run.close()


@pytest.fixture
def own(tmp_path):
    directory = OwnDirectory(tmp_path)
    yield directory
    directory.close()


def copied(copy: StreamsCopy, name: str) -> list:
    return [entry.record for entry in copy.streams.reader(name).read(timeout_s=0)]


@needs_redis
def test_what_is_appended_is_copied_once_also_by_the_next_viewer(run, own):
    run.append("rollouts", member_of(0, 0, 0, 1.0))
    copy = StreamsCopy(run.run_dir, own)
    copy.update()
    saved = own.positions.read_bytes()
    run.append("rollouts", member_of(1, 0, 0, 1.0))
    copy.update()
    copy.update()
    assert [record.group_id for record in copied(copy, "rollouts")] == [0, 1]
    for writer in copy._writers.values():
        writer.close()
    own.positions.write_bytes(saved)  # as if it had been killed before it wrote its last positions
    run.append("rollouts", member_of(2, 0, 0, 1.0))
    again = StreamsCopy(run.run_dir, own)
    again.update()
    assert [record.group_id for record in copied(again, "rollouts")] == [0, 1, 2]


@needs_redis
def test_in_the_copy_a_resumption_has_the_ends_of_the_copies(run, own):
    run.append("actor_events", *(Started(group_id=n, rollouts=1, draw=n, problem=n) for n in range(3)))
    copy = StreamsCopy(run.run_dir, own)
    copy.update()
    run.append("trainer_events", published(0), published(1))
    ends = {"actor_events": end_of(run, "actor_events"), "trainer_events": end_of(run, "trainer_events")}
    run.append(LAUNCHER, msgspec.structs.replace(FRESH_RUN, version=1, ends=ends, next_group=3))
    run.append("actor_events", Started(group_id=3, rollouts=1, draw=3, problem=3))
    run.append("trainer_events", published(2))
    copy.update()
    there = [type(event).__name__ for event in recorded_events(run.streams)]
    assert [type(event).__name__ for event in recorded_events(copy.streams)] == there
    (resumed,) = [event for event in copied(copy, LAUNCHER) if isinstance(event, Resumed)]
    assert resumed.ends != ends


def end_of(run: RecordedRun, name: str) -> int:
    return max(entry.next_offset for entry in run.streams.reader(name).read(timeout_s=0))


@needs_redis
def test_a_server_that_does_not_run_is_left_alone_once_all_is_copied(tmp_path, own):
    run = RecordedRun(tmp_path / "run", streams={"backend": "redis", "url": None, "run": "name"})
    with RedisServer(run.run_dir / "redis") as server:
        run.streams = RedisStreams(server.url, "name")
        run.append("rollouts", member_of(0, 0, 0, 1.0))
        run.close()
    StreamsCopy(run.run_dir, own).update()
    path = os.environ["PATH"]
    try:
        os.environ["PATH"] = ""
        source = Source(run.run_dir, own)
        source.update()  # would start a server
    finally:
        os.environ["PATH"] = path
    assert len(copied(source._copy, "rollouts")) == 1


@needs_redis
def test_a_run_on_redis_shows_what_it_did_and_resumes_under_an_open_viewer(tmp_path):
    run = tmp_path / "run"
    status, err = finish(start(run, "streams=redis", "max_steps=3"))
    assert status == 0, err
    with viewing(run) as viewer:
        before = viewer.get("runs/run/accounting")
        assert before["holds"] and before["rollouts"]["trained"] == 3 * 32
        status, err = finish(resume(run, "max_steps=6"))
        assert status == 0, err
        after = viewer.get("runs/run/accounting")
        while after["rollouts"]["trained"] < 6 * 32:
            after = viewer.get("runs/run/accounting")
        assert after["holds"]
        assert viewer.get("runs/run")["step"] == 6
