"""What the files backend adds to what every backend promises: torn tails, damage, segments, disk use."""

import os
import shutil
from pathlib import Path

import pytest

from contracts.records import SamplerState
from pipelinerl.streams import StreamCorruptError, StreamError
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.segments import HEADER_BYTES, seal, segment_path, segment_starts
from tests.clock import Clock
from tests.limits import HANG_S
from tests.streams.records import event, there

SMALL_SEGMENT = 4096


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "streams" / "events"


@pytest.fixture
def files(directory):
    return FileStreams(directory.parent, segment_bytes=SMALL_SEGMENT)


def fill(files, count) -> list[int]:
    """Append and close; returns the offsets at which the records begin, and the end."""
    writer = files.writer("events")
    offsets = [0] + [writer.append(event(number)) for number in range(count)]
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
        reading = files.reader("events").read(begin, timeout_s=HANG_S)
        writer = files.writer("events")
        assert writer.last() == event(1)
        assert writer.append(event(7)) == end  # as long as the torn one, and not mixed up with it
        writer.close()
        assert next(reading).record == event(7)
        assert there(files, "events") == [0, 1, 7]


def test_a_reader_waits_for_the_rest_of_a_torn_record(files, directory, monkeypatch):
    *_, begin, end = fill(files, 3)
    path, whole = segment_path(directory, 0), segment_path(directory, 0).read_bytes()
    path.write_bytes(whole[: begin + 5])
    rest = iter(range(begin + 5, end))
    with path.open("ab", buffering=0) as file:
        clock = Clock(on_sleep=lambda: file.write(whole[(byte := next(rest)) : byte + 1]))
        monkeypatch.setattr("pipelinerl.streams.files.time", clock)
        assert next(files.reader("events").read(begin)).record == event(2)
    assert clock.sleeps == end - begin - 5


def test_a_damaged_byte_in_the_middle_is_an_error_that_names_the_place(files, directory):
    _, begin, end, *_ = fill(files, 4)
    path, whole = segment_path(directory, 0), bytearray(segment_path(directory, 0).read_bytes())
    for byte in range(begin, end):
        damaged = whole.copy()
        damaged[byte] ^= 0x10
        path.write_bytes(damaged)
        reading = files.reader("events").read(timeout_s=0)
        assert next(reading).record == event(0)
        with pytest.raises(StreamCorruptError, match=f"{path} .* offset {begin}:"):
            next(reading)
        with pytest.raises(StreamCorruptError, match=f"{path} .* offset {begin}:"):
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
    with pytest.raises(StreamCorruptError, match=f"{third:020d}.records should follow at offset {second}"):
        there(files, "gap")
    os.truncate(segment_path(directory, first), second - 1)
    with pytest.raises(StreamCorruptError, match="the segment ends inside the record"):
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


def test_an_offset_in_no_stream_is_an_error(files):
    with pytest.raises(StreamError, match="no stream"):
        there(files, "rows", 1)


def test_bytes_that_are_no_record_are_an_error(files, directory):
    *_, end = fill(files, 1)
    framed = bytearray(HEADER_BYTES) + b"\x81\xa6record\xa7Unknown"
    seal(framed)
    with segment_path(directory, 0).open("ab") as file:
        file.write(framed)
    with pytest.raises(StreamCorruptError, match=f"no known record at offset {end}"):
        there(files, "events")


def test_an_idle_reader_looks_forty_times_a_second_until_its_time_is_over(files, monkeypatch):
    *_, end = fill(files, 3)
    monkeypatch.setattr("pipelinerl.streams.files.time", clock := Clock())
    began = clock.now
    assert list(files.reader("events").read(end, timeout_s=HANG_S)) == []
    assert clock.now == pytest.approx(began + HANG_S)
    assert clock.sleeps < 41 * HANG_S


def test_what_is_protected_stays_beyond_keep_bytes_until_less_is(directory):
    writer = FileStreams(directory.parent, SMALL_SEGMENT, keep_bytes=1).writer("events")
    offsets = [0, *(writer.append(event(number)) for number in range(999))]
    reader = FileStreams(directory.parent).reader("events")
    assert writer.end - reader.first_offset() <= 2 * SMALL_SEGMENT < writer.end
    protected = offsets[-1]
    writer.protect(protected)
    for number in range(999, 3000):
        writer.append(event(number))
    assert [e.record.group_id for e in reader.read(protected, timeout_s=0)] == list(range(999, 3000))
    assert reader.first_offset() <= protected
    writer.protect(writer.end)
    for number in range(3000, 3999):
        writer.append(event(number))
    assert reader.first_offset() > protected


# --- loss of power ----------------------------------------------------------------------------


def test_zeros_from_any_byte_of_the_last_records_on_are_cut_off_by_the_next_writer(files, directory):
    _, *ends = fill(files, 4)
    path, whole = segment_path(directory, 0), segment_path(directory, 0).read_bytes()
    for first_zero in range(ends[1], ends[3]):
        for size in (ends[3] + 7, 4096):
            stored = whole[:first_zero].ljust(size, b"\0")
            left = sum(stored[:end] == whole[:end] for end in ends)
            path.write_bytes(stored)
            assert there(files, "events") == [*range(left)]
            if size == 4096:
                writer = files.writer("events")
                assert writer.last() == event(left - 1) and path.stat().st_size == writer.end
                writer.append(event(9))
                writer.close()
                assert there(files, "events") == [*range(left), 9]


@pytest.fixture
def long_records(directory):
    """A stream of three records of some blocks each, in one segment; returns the ends of its records."""
    writer = FileStreams(directory.parent, segment_bytes=2**20).writer("events")
    ends = [writer.append(SamplerState(draws=n, state={"order": [7] * 10_000})) for n in range(3)]
    writer.close()
    return ends


def test_a_block_that_was_never_written_ends_the_stream_whatever_follows(directory, files, long_records):
    first, second, third = long_records
    path, whole = segment_path(directory, 0), segment_path(directory, 0).read_bytes()
    for block in range(0, third, 4096):
        path.write_bytes(whole[:block] + bytes(4096) + whole[block + 4096 :])
        left = sum(end <= block for end in long_records)
        records = [entry.record.draws for entry in files.reader("events").read(timeout_s=0)]
        assert records == list(range(left))
        files.writer("events").close()
        assert path.stat().st_size == [0, *long_records][left]


def test_zeros_in_a_segment_before_others_are_an_error(files, directory):
    fill(files, 500)
    first, second, *_ = segment_starts(directory)
    path = segment_path(directory, first)
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with pytest.raises(StreamCorruptError, match=f"{path} is corrupt"):
        there(files, "events")


def test_a_segment_is_on_the_disk_before_the_next_one_has_a_record(files, directory, monkeypatch):
    synced = synced_paths(monkeypatch)
    fill(files, 500)
    sealed = [segment_path(directory, start) for start in segment_starts(directory)[:-1]]
    assert len(sealed) > 3 and [path for path in synced if path.suffix] == sealed
    assert synced.count(directory) == len(sealed)


def test_sync_covers_what_was_appended_since_the_last_one_and_the_names(files, directory, monkeypatch):
    fill(files, 500)
    *_, last = segment_starts(directory)
    synced = synced_paths(monkeypatch)
    files.sync(["events", "none_yet"])
    starts = segment_starts(directory)
    above = [directory, directory.parent, directory.parent.parent]
    assert synced == [*(segment_path(directory, start) for start in starts), *above]
    synced.clear()
    files.sync(["events"])
    assert synced == [segment_path(directory, last), *above]


def synced_paths(monkeypatch) -> list[Path]:
    """What is given to fsync from here on, in order."""
    synced = []

    def fsync(file: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")))

    monkeypatch.setattr(os, "fsync", fsync)
    return synced
