"""Streams: what every backend promises (the first part), and what files add (the second).

A backend joins by one line in BACKENDS. Writers that die are real processes, killed with SIGKILL.
"""

import functools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from contracts.records import Completion, Rollout, Started, VersionSpan
from pipelinerl.streams import StreamBusy, StreamCorrupt, StreamError, StreamTrimmed
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.segments import frame, segment_path, segment_starts

SMALL_SEGMENT = 4096
processes = multiprocessing.get_context("spawn")


def make_files(directory):
    return functools.partial(FileStreams, directory / "streams", segment_bytes=SMALL_SEGMENT)


BACKENDS = {"files": make_files}


@pytest.fixture(params=BACKENDS)
def make_streams(request, tmp_path):
    """A picklable function that opens the same streams in any process."""
    return BACKENDS[request.param](tmp_path)


def event(number: int) -> Started:
    return Started(group_id=number, rollouts=8)


def rollout(number: int, tokens: int) -> Rollout:
    completion = Completion(
        prompt_token_ids=np.arange(3, dtype=np.int32),
        token_ids=np.full(tokens, number, dtype=np.int32),
        logprobs=np.linspace(-1, 0, tokens, dtype=np.float32),
        spans=[VersionSpan(0, 0, tokens)],
        temperature=1.0,
        finish_reason="stop",
    )
    return Rollout(
        run="r", rollout_id=str(number), group_id=number, problem_id="p", domain="d", completions=[completion]
    )


def numbers(entries) -> list[int]:
    return [entry.record.group_id for entry in entries]


def there(streams, name, offset=0) -> list[int]:
    return numbers(streams.reader(name).read(offset, timeout_s=0))


def process(target, *arguments):
    started = processes.Process(target=target, args=arguments, daemon=True)
    started.start()
    return started


# --- every backend ----------------------------------------------------------------------------


def test_records_come_back_as_they_were_appended(make_streams):
    streams = make_streams()
    writer = streams.writer("rollouts")
    first, second = rollout(1, 5), rollout(2, 3000)  # the second is larger than a segment
    offsets = [writer.append(first), writer.append(second)]
    entries = list(streams.reader("rollouts").read(timeout_s=0))
    assert [entry.next_offset for entry in entries] == offsets
    for sent, entry in zip((first, second), entries, strict=True):
        assert entry.record.rollout_id == sent.rollout_id
        got, want = entry.record.completions[0], sent.completions[0]
        assert got.token_ids.dtype == np.int32 and got.logprobs.dtype == np.float32
        assert np.array_equal(got.token_ids, want.token_ids)
        assert np.array_equal(got.logprobs, want.logprobs)
        assert got.spans == want.spans


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


def test_reading_ends_after_the_timeout_without_a_record(make_streams):
    streams = make_streams()
    streams.writer("events").append(event(0))
    begin = time.monotonic()
    assert numbers(streams.reader("events").read(timeout_s=0.2)) == [0]
    assert 0.2 <= time.monotonic() - begin < 1.5


def test_a_waiting_reader_gets_what_is_appended_later(make_streams):
    streams = make_streams()
    reading = streams.reader("events").read(timeout_s=20)
    writer = streams.writer("events")
    for number in range(50):
        later = threading.Timer(0.002 * (number % 5), writer.append, [event(number)])
        later.start()
        assert next(reading).record.group_id == number
        later.join()


def write_many(make_streams, count):
    writer = make_streams().writer("rollouts")
    for number in range(count):
        writer.append(rollout(number, tokens=number % 700))


def test_a_reader_keeps_up_with_a_writer_in_another_process(make_streams):
    writer = process(write_many, make_streams, 3000)
    entries = make_streams().reader("rollouts").read(timeout_s=20)
    for number in range(3000):
        record = next(entries).record
        assert record.group_id == number
        assert record.sampled_tokens == number % 700
    writer.join()
    assert writer.exitcode == 0


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
    assert ours.poll(20) and ours.recv() == "writing"
    with pytest.raises(StreamBusy, match=f"events.*{holder.pid}"):
        make_streams().writer("events")
    make_streams().writer("others").close()
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    writer = make_streams().writer("events")
    with pytest.raises(StreamBusy, match=str(os.getpid())):
        make_streams().writer("events")
    writer.append(event(1))
    assert there(make_streams(), "events") == [0, 1]


def append_for_ever(make_streams, connection):
    """Goes on from the newest record; reports each append that returned."""
    writer = make_streams().writer("rollouts")
    last = writer.last()
    number = last.group_id + 1 if last else 0
    while True:
        writer.append(rollout(number, tokens=100_000))  # large, so that the kill falls into a write
        connection.send(number)
        number += 1


def test_what_was_appended_survives_kill_9(make_streams):
    """A reader that lives through ten writers' deaths sees every record once, in order."""
    seen, wanted, enough = [], threading.Event(), threading.Event()

    def read():
        for number in map(lambda e: e.record.group_id, make_streams().reader("rollouts").read(timeout_s=20)):
            seen.append(number)
            if wanted.is_set() and number == appended:
                return enough.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    appended, chance = -1, random.Random(0)
    for _ in range(10):
        ours, theirs = processes.Pipe()
        writer = process(append_for_ever, make_streams, theirs)
        theirs.close()
        assert ours.poll(20)
        time.sleep(chance.uniform(0, 0.02))  # the moment of death is what varies
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        try:
            while True:
                reported = ours.recv()
        except EOFError:
            assert reported > appended
            appended = reported
        on_disk = there(make_streams(), "rollouts")
        assert on_disk == list(range(len(on_disk)))
        assert len(on_disk) > appended
    writer = make_streams().writer("rollouts")
    appended = len(on_disk)
    writer.append(rollout(appended, tokens=1))
    wanted.set()
    writer.append(rollout(appended := appended + 1, tokens=1))
    assert enough.wait(20)
    assert seen == list(range(appended + 1))


def test_trim_keeps_everything_from_the_offset_on(make_streams):
    streams = make_streams()
    writer = streams.writer("events")
    offsets = [0] + [writer.append(event(n)) for n in range(1000)]
    for keep_from in (1, 250, 600, 999, 1000):
        writer.trim(offsets[keep_from])
        assert there(streams, "events", offsets[keep_from]) == list(range(keep_from, 1000))
        first = streams.reader("events").first_offset()
        kept = there(streams, "events", first)
        assert kept == list(range(kept[0], 1000)) and kept[0] <= keep_from
        assert writer.last() == event(999)
    assert len(kept) < 250
    writer.close()
    assert streams.writer("events").last() == event(999)


# --- files ------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "streams" / "events"


@pytest.fixture
def files(directory):
    return FileStreams(directory.parent, segment_bytes=SMALL_SEGMENT)


def fill(files, count, make=event) -> list[int]:
    """Append and close; returns the offsets at which the records begin, and the end."""
    writer = files.writer("events")
    offsets = [0] + [writer.append(make(number)) for number in range(count)]
    writer.close()
    return offsets


def test_segments_are_named_by_the_offset_at_which_they_start(files, directory):
    offsets = fill(files, 500)
    starts = segment_starts(directory)
    assert len(starts) > 3 and set(starts) <= set(offsets)
    sizes = [segment_path(directory, start).stat().st_size for start in starts]
    assert [start + size for start, size in zip(starts, sizes, strict=True)] == [*starts[1:], offsets[-1]]
    assert max(sizes) <= SMALL_SEGMENT
    assert sorted(p.name for p in directory.iterdir())[0] == "00000000000000000000.records"


def test_a_record_torn_at_any_byte_is_ignored_then_replaced(files, directory):
    *_, begin, end = fill(files, 3)
    path, whole = segment_path(directory, 0), segment_path(directory, 0).read_bytes()
    for cut in range(begin, end):
        path.write_bytes(whole[:cut])
        assert there(files, "events") == [0, 1]
        reading = files.reader("events").read(begin, timeout_s=20)
        writer = files.writer("events")
        assert writer.last() == event(1)
        assert writer.append(event(7)) == end  # as long as the torn one, and not mixed up with it
        writer.close()
        assert next(reading).record == event(7)
        assert there(files, "events") == [0, 1, 7]


def test_a_reader_waits_for_the_rest_of_a_torn_record(files, directory):
    *_, begin, end = fill(files, 3)
    path, whole = segment_path(directory, 0), segment_path(directory, 0).read_bytes()
    path.write_bytes(whole[: begin + 5])
    reading = files.reader("events").read(begin, timeout_s=20)
    with path.open("ab", buffering=0) as file:

        def dribble():
            for byte in range(begin + 5, end):
                file.write(whole[byte : byte + 1])
                time.sleep(0.001)  # so that the reader looks in between

        writer = threading.Thread(target=dribble)
        writer.start()
        assert next(reading).record == event(2)
        writer.join()


def test_a_damaged_byte_in_the_middle_is_an_error_that_names_the_place(files, directory):
    _, begin, end, *_ = fill(files, 4)
    path, whole = segment_path(directory, 0), bytearray(segment_path(directory, 0).read_bytes())
    for byte in range(begin, end):
        damaged = whole.copy()
        damaged[byte] ^= 0x10
        path.write_bytes(damaged)
        reading = files.reader("events").read(timeout_s=0)
        assert next(reading).record == event(0)
        with pytest.raises(StreamCorrupt, match=f"{path} .* offset {begin}:"):
            next(reading)
        with pytest.raises(StreamCorrupt, match=f"{path} .* offset {begin}:"):
            files.writer("events")
        assert path.read_bytes() == damaged


def test_a_damaged_payload_at_the_end_counts_as_torn(files, directory):
    fill(files, 3)
    path = segment_path(directory, 0)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 0x10
    path.write_bytes(whole)
    assert there(files, "events") == [0, 1]
    assert files.writer("events").last() == event(1)


def test_a_segment_cut_short_or_missing_before_others_is_an_error(files, directory):
    fill(files, 500)
    first, second, third, *_ = segment_starts(directory)
    shutil.copytree(directory, directory.with_name("gap"))
    segment_path(directory.with_name("gap"), second).unlink()
    with pytest.raises(StreamCorrupt, match=f"{third:020d}.records should follow at offset {second}"):
        there(files, "gap")
    os.truncate(segment_path(directory, first), second - 1)
    with pytest.raises(StreamCorrupt, match="the segment ends inside the record"):
        there(files, "events")


def test_a_writer_that_died_between_two_segments_goes_on(files, directory):
    *_, end = fill(files, 3)
    segment_path(directory, end).touch()
    assert there(files, "events") == [0, 1, 2]
    writer = files.writer("events")
    writer.trim(end)  # the newest record lies in the segment before: it stays
    assert writer.last() == event(2)
    writer.append(event(3))
    assert there(files, "events") == [0, 1, 2, 3]
    writer.trim(end)
    assert segment_starts(directory) == [end]


def test_a_trimmed_offset_is_an_error_and_disk_use_is_bounded(files, directory):
    writer = files.writer("events")
    late, middle = files.reader("events").read(timeout_s=20), None
    for number in range(2000):
        offset = writer.append(event(number))
        if number == 10:
            assert next(late).record == event(0)
            middle = offset
        if number % 10 == 0:
            writer.trim(offset)
            assert sum(path.stat().st_size for path in directory.iterdir()) < 2 * SMALL_SEGMENT
    for old in (0, middle):
        with pytest.raises(StreamTrimmed, match=f"begins at {segment_starts(directory)[0]}, not at {old}"):
            there(files, "events", old)
    with pytest.raises(StreamTrimmed):
        list(late)


def test_an_offset_beyond_the_end_is_an_error(files):
    *_, end = fill(files, 3)
    with pytest.raises(StreamError, match=f"offset {end + 1} lies beyond the end"):
        there(files, "events", end + 1)
    with pytest.raises(StreamError, match="no stream"):
        there(files, "rows", end)


def test_bytes_that_are_no_record_are_an_error(files, directory):
    *_, end = fill(files, 1)
    with segment_path(directory, 0).open("ab") as file:
        file.write(frame(b"\x81\xa6record\xa7Unknown"))
    with pytest.raises(StreamCorrupt, match=f"no known record at offset {end}"):
        there(files, "events")


def append_until_the_disk_is_full(make_streams, connection):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    writer = make_streams().writer("events")
    for number in range(1000):
        try:
            writer.append(event(number))
        except OSError:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            writer.append(event(number))
            connection.send(number)
            return


def test_a_full_disk_leaves_no_half_record(tmp_path):
    make_streams = functools.partial(FileStreams, tmp_path)
    ours, theirs = processes.Pipe()
    writer = process(append_until_the_disk_is_full, make_streams, theirs)
    assert ours.poll(20)
    failed_at = ours.recv()
    writer.join()
    assert there(make_streams(), "events") == list(range(failed_at + 1))


def test_an_idle_reader_costs_little(files):
    *_, end = fill(files, 3)
    begin = time.process_time()
    assert list(files.reader("events").read(end, timeout_s=1.0)) == []
    assert time.process_time() - begin < 0.2
