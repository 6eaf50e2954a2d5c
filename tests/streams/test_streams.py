"""What every backend of the streams promises. A backend joins by one line in BACKENDS.

Writers that die are real processes, killed with SIGKILL.
"""

import functools
import multiprocessing
import os
import signal
import threading

import msgspec
import pytest

from contracts.records import Quiesced, Rollout, Started, encode
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.streams import StreamBusyError, StreamError, StreamTrimmedError
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.clock import Clock
from tests.streams.records import event, there
from tests.threads import wait_until_it_waits

SMALL_SEGMENT = 4096
processes = multiprocessing.get_context("spawn")


def make_files(directory, request):
    return functools.partial(FileStreams, directory / "streams", segment_bytes=SMALL_SEGMENT)


def make_redis(directory, request):
    return functools.partial(RedisStreams, request.getfixturevalue("redis_url"), directory.name)


BACKENDS = {"files": make_files, "redis": make_redis}


NEEDS = {"redis": [pytest.mark.engines]}  # a server's program


@pytest.fixture(params=[pytest.param(name, marks=NEEDS.get(name, [])) for name in BACKENDS])
def make_streams(request, tmp_path):
    """A picklable function that opens the same streams in any process."""
    return BACKENDS[request.param](tmp_path, request)


def sampled(number: int, tokens: int) -> Rollout:
    return rollout(number, completions=[completion([1, 2], [number] * tokens)])


def process(target, *arguments):
    started = processes.Process(target=target, args=arguments, daemon=True)
    started.start()
    return started


def test_records_come_back_as_they_were_appended(make_streams):
    streams = make_streams()
    writer = streams.writer("rollouts")
    first, second = sampled(1, 5), sampled(2, 3000)  # the second is larger than a segment
    offsets = [writer.append(first), writer.append(second)]
    entries = list(streams.reader("rollouts").read(timeout_s=0))
    assert [entry.next_offset for entry in entries] == offsets
    assert [encode(entry.record) for entry in entries] == [encode(first), encode(second)]


def test_reading_goes_on_from_any_offset(make_streams):
    streams = make_streams()
    writer = streams.writer("events")
    offsets = [0] + [writer.append(event(n)) for n in range(300)]
    assert offsets == sorted(set(offsets))
    for number, offset in enumerate(offsets):
        assert there(streams, "events", offset) == list(range(number, 300))


def test_a_stream_that_does_not_exist_is_empty(make_streams):
    streams = make_streams()
    assert there(streams, "events") == []
    assert streams.reader("events").first_offset() == 0
    assert streams.names() == []
    assert streams.writer("events").last() is None
    assert streams.names() == ["events"]


def test_a_waiting_reader_gets_what_is_appended_later(make_streams):
    streams = make_streams()
    reading = streams.reader("events").read()
    writer = streams.writer("events")
    reader = threading.get_native_id()

    def append_once_it_waits(number: int) -> None:
        wait_until_it_waits(reader)
        writer.append(event(number))

    for number in range(20):
        later = threading.Thread(target=append_once_it_waits, args=[number])
        later.start()
        assert next(reading).record.group_id == number
        later.join()


def test_last_is_the_newest_record_for_a_restarted_writer(make_streams):
    for number in range(200):
        writer = make_streams().writer("events")
        assert writer.last() == (event(number - 1) if number else None)
        writer.append(event(number))
        assert writer.last() == event(number)
        writer.close()
    assert there(make_streams(), "events") == list(range(200))


def hold(make_streams, connection):
    writer = make_streams().writer("events")
    writer.append(event(0))
    connection.send("writing")
    signal.pause()


def test_one_live_writer_and_the_lock_of_a_dead_one_is_free(make_streams):
    ours, theirs = processes.Pipe()
    holder = process(hold, make_streams, theirs)
    assert ours.recv() == "writing"
    with pytest.raises(StreamBusyError, match=f"events.*{holder.pid}"):
        make_streams().writer("events")
    make_streams().writer("others").close()
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    writer = make_streams().writer("events")
    with pytest.raises(StreamBusyError, match=str(os.getpid())):
        make_streams().writer("events")
    writer.append(event(1))
    assert there(make_streams(), "events") == [0, 1]


def test_trim_keeps_everything_from_the_offset_on(make_streams):
    streams = make_streams()
    writer = streams.writer("events")
    offsets = [0] + [writer.append(event(n)) for n in range(1000)]
    late = streams.reader("events").read(timeout_s=0)
    assert next(late).record == event(0)
    for keep_from in (1, 250, 600, 999, 1000):
        writer.trim(offsets[keep_from])
        assert there(streams, "events", offsets[keep_from]) == list(range(keep_from, 1000))
        first = streams.reader("events").first_offset()
        kept = there(streams, "events", first)
        assert kept == list(range(kept[0], 1000)) and kept[0] <= keep_from
        assert writer.last() == event(999)
    assert len(kept) < 250
    for old in (0, offsets[1]):
        with pytest.raises(
            StreamTrimmedError, match=f"events is trimmed: it begins at {first}, not at {old}"
        ):
            there(streams, "events", old)
    with pytest.raises(StreamTrimmedError):
        list(late)
    with pytest.raises(StreamError, match=f"offset {offsets[-1] + 1} lies beyond the end"):
        there(streams, "events", offsets[-1] + 1)
    writer.close()
    assert streams.writer("events").last() == event(999)


def test_an_event_says_when_it_was_written_and_what_two_writers_compare_does_not(make_streams, monkeypatch):
    monkeypatch.setattr("pipelinerl.streams.base.time", clock := Clock())
    streams = make_streams()
    writer = streams.writer("events")
    undated = Started(group_id=1, rollouts=8, draw=1, problem=0)
    for record in (undated, event(2), Quiesced(version=3)):
        writer.append(record)
    first, second, third = (entry.record for entry in streams.reader("events").read(timeout_s=0))
    assert first.at == clock.now
    assert (msgspec.structs.replace(first, at=0.0), second, third) == (undated, event(2), Quiesced(version=3))
