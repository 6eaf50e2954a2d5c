"""What the redis backend adds to what every backend promises: who may write, and how it is read."""

import os

import pytest
import redis

from contracts.records import SamplerState, encode
from extensions.redis_streams.server import RedisServer
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.streams import StreamBusyError, StreamCorruptError, StreamTrimmedError
from tests.extensions.redis_streams.records import key, kill_connections
from tests.small_disk import FILLER, fill
from tests.streams.records import event, numbers, there

pytestmark = pytest.mark.engines


# --- ownership --------------------------------------------------------------------------------


def test_a_writer_that_was_replaced_while_its_connection_was_broken_writes_nothing(streams, admin):
    replaced = streams.writer("events")
    replaced.append(event(0))
    assert kill_connections(admin, f":{os.getpid()}:events:") == 1
    writer = streams.writer("events")
    for attempt in (lambda: replaced.append(event(9)), lambda: replaced.trim(10**9)):
        with pytest.raises(
            StreamBusyError, match=f"events is no longer .* process {os.getpid()} on .* taken it over"
        ):
            attempt()
    writer.append(event(1))
    assert there(streams) == [0, 1]


def test_a_writer_whose_connection_broke_is_the_writer_again_at_its_next_append(streams, admin):
    writer = streams.writer("events")
    kill_connections(admin, f":{os.getpid()}:events:")
    writer.append(event(0))
    with pytest.raises(StreamBusyError, match=f"events is being written to by process {os.getpid()} on"):
        streams.writer("events")


def test_runs_on_one_server_do_not_meet(streams, redis_url, tmp_path):
    other = RedisStreams(redis_url, f"{tmp_path.name}-other")
    ours, theirs = streams.writer("events"), other.writer("events")
    ours.append(event(0))
    theirs.append(event(1))
    other.writer("rows")
    assert there(streams) == [0] and there(other) == [1]
    assert streams.names() == ["events"] and other.names() == ["events", "rows"]


# --- reading ----------------------------------------------------------------------------------


def test_a_waiting_reader_blocks_and_does_not_poll(streams, admin):
    streams.writer("events").append(event(0))
    admin.config_resetstat()
    assert numbers(streams.reader("events").read(timeout_s=1.0)) == [0]
    assert admin.info("commandstats")["cmdstat_xread"]["calls"] <= 4


def test_what_retention_let_go_of_is_an_error_that_names_where_it_begins(streams, admin, tmp_path):
    writer = streams.writer("events")
    offsets = [0] + [writer.append(event(number)) for number in range(100)]
    writer.trim(offsets[60])
    assert streams.reader("events").first_offset() == offsets[60]
    admin.xdel(key(tmp_path, "stream"), f"{offsets[71]}-0")
    with pytest.raises(StreamTrimmedError, match=f"begins at {offsets[71]}, not at {offsets[70]}"):
        there(streams, offset=offsets[60])


def test_what_is_no_record_is_corrupt(streams, admin, tmp_path):
    writer = streams.writer("events")
    end = writer.append(event(0))
    with pytest.raises(StreamCorruptError, match=f"no record that begins at {end - 1}"):
        there(streams, offset=end - 1)
    admin.xadd(key(tmp_path, "stream"), {"record": b"\x81\xa6record\xa7Unknown"}, f"{end + 16}-0")
    with pytest.raises(StreamCorruptError, match=f"no known record at {end}"):
        there(streams)
    admin.xadd(key(tmp_path, "stream"), {"what": b"ever"}, f"{end + 17}-0")
    with pytest.raises(StreamCorruptError, match=f"holds no record at {end + 17}-0"):
        writer.last()


def test_keep_bytes_bounds_a_stream_except_what_is_protected_and_events(redis_url, tmp_path):
    size, keep = len(encode(event(10))), 50 * len(encode(event(10)))
    streams = RedisStreams(redis_url, tmp_path.name, keep_bytes=keep)
    rows, events, reader = streams.writer("rows"), streams.writer("actor_events"), streams.reader("rows")
    rows.protect(0)
    for number in range(200):
        rows.append(event(number))
        events.append(event(number))
    assert there(streams, "rows") == there(streams, "actor_events") == list(range(200))
    rows.protect(rows.end)
    rows.append(event(200))
    assert keep <= rows.end - reader.first_offset() < keep + 2 * size
    tiny = RedisStreams(redis_url, tmp_path.name, keep_bytes=1).writer("eval_rollouts")
    tiny.append(event(0))
    tiny.append(event(1))
    assert tiny.last() == event(1)


def test_memory_that_is_full_is_waited_for(server, monkeypatch, caplog):
    monkeypatch.setattr("pipelinerl.streams.full_storage.RETRY_S", 0.01)
    with server:
        full = redis.Redis.from_url(server.url)
        streams = RedisStreams(server.url, "run", on_wait=lambda: full.config_set("maxmemory", 0))
        writer = streams.writer("events")
        full.config_set("maxmemory", 1)
        writer.append(event(0))
        assert there(streams) == [0]
    assert "is full: appending to events waits for room" in caplog.text


def test_a_full_disk_is_waited_for_and_what_was_appended_outlives_the_server(small_disk, monkeypatch, caplog):
    monkeypatch.setattr("pipelinerl.streams.full_storage.RETRY_S", 0.05)
    server, filler = RedisServer(small_disk / "redis"), small_disk / FILLER
    records = [SamplerState(draws=1, state={"a": "7" * 50_000})] * 30
    with server:
        streams = RedisStreams(server.url, "run", on_wait=lambda: filler.unlink(missing_ok=True))
        writer = streams.writer("events")
        fill(small_disk, leaving=400_000)
        for record in records:
            writer.append(record)
    assert "MISCONF" in caplog.records[0].getMessage()
    with server:
        reader = RedisStreams(server.url, "run").reader("events")
        assert [entry.record for entry in reader.read(timeout_s=0)] == records
