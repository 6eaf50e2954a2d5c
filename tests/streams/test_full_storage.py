"""What is written to a full disk waits for room; other errors do not."""

import errno
import logging
import threading

import pytest

from contracts.records import SamplerState
from contracts.support.files import is_disk_full
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.metrics import MetricsWriter, metrics_path, read_metrics
from pipelinerl.streams import StreamBusyError, StreamFullError
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.full_storage import retry_while_full
from pipelinerl.streams.of_run import open_streams
from pipelinerl.streams.segments import segment_starts
from tests.pipeline.runs import wait_for
from tests.small_disk import fill, make_room

FULL = "/dev/full"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("pipelinerl.streams.full_storage.RETRY_S", 0.01)


def test_what_finds_no_room_is_tried_again_and_that_is_said_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    roomy = str(tmp_path / "file")
    paths = iter([FULL, FULL, FULL, roomy])

    def write() -> str:
        with open(next(paths), "wb", buffering=0) as file:
            file.write(b"x")
            return file.name

    beats: list[None] = []
    said = ("rollouts", "the disk of /run", lambda: beats.append(None))
    assert retry_while_full(write, *said) == roomy
    assert len(beats) == 3
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the disk of /run is full: appending to rollouts waits for room")
    assert second == "the disk of /run has room again: appending to rollouts goes on"


def test_a_server_without_room_is_waited_for_and_another_error_is_not(caplog):
    answers = iter([StreamFullError("OOM"), StreamFullError("OOM"), PermissionError(errno.EACCES, "no")])

    def write():
        raise next(answers)

    with pytest.raises(PermissionError):
        retry_while_full(write, "rollouts", "the server", lambda: None)
    assert len(caplog.records) == 1


def test_a_lack_of_room_is_found_behind_other_errors():
    try:
        try:
            with open(FULL, "wb", buffering=0) as file:
                file.write(b"x")
        except OSError:
            raise RuntimeError("unexpected pos") from None
    except RuntimeError as error:
        assert is_disk_full(error)
    assert is_disk_full(OSError(errno.EDQUOT, "quota"))
    assert not is_disk_full(OSError("no number")) and not is_disk_full(RuntimeError("other"))


# --- on a disk that is full -------------------------------------------------------------------


@pytest.mark.engines
@pytest.mark.parametrize("segment_bytes", [2**20, 8192])
def test_a_stream_on_a_full_disk_waits_and_goes_on_whole(small_disk, segment_bytes, caplog):
    """Also where it is another segment for which there is no room. Its process is not taken for hung."""
    config = compose_config(
        ["inference=scripted", "trainer=scripted", f"streams.segment_bytes={segment_bytes}"]
    )
    beats: list[None] = []
    streams = open_streams(config, small_disk, on_wait=lambda: beats.append(None))
    writer = streams.writer("events")
    records = [SamplerState(draws=n, state={"order": [7] * 1000}) for n in range(40)]
    writer.append(records[0])
    fill(small_disk, leaving=8192)
    appending = threading.Thread(target=lambda: [writer.append(record) for record in records[1:]])
    appending.start()
    wait_for(lambda: caplog.records and beats)
    seen = [entry.record for entry in streams.reader("events").read(timeout_s=0)]
    assert 0 < len(seen) < len(records) and seen == records[: len(seen)]
    make_room(small_disk)
    appending.join()
    assert [entry.record for entry in streams.reader("events").read(timeout_s=0)] == records
    assert "waits for room" in caplog.records[0].getMessage()
    assert len(segment_starts(small_disk / "streams" / "events")) == (1 if segment_bytes == 2**20 else 6)


@pytest.mark.engines
def test_a_stream_is_opened_again_on_a_full_disk(small_disk):
    """As by a process that begins again."""
    streams = FileStreams(small_disk / "streams")
    writer = streams.writer("events")
    writer.append(SamplerState(draws=0, state={}))
    writer.close()
    fill(small_disk)
    writer = streams.writer("events")
    assert writer.last().draws == 0
    with pytest.raises(StreamBusyError, match="is being written to by process"):
        streams.writer("events")
    make_room(small_disk)
    writer.append(SamplerState(draws=1, state={}))
    assert [entry.record.draws for entry in streams.reader("events").read(timeout_s=0)] == [0, 1]


@pytest.mark.engines
def test_metrics_for_which_there_is_no_room_are_left_out(small_disk, caplog):
    metrics = MetricsWriter(small_disk, "trainer")
    metrics.write(1, loss=1.0)
    fill(small_disk)
    for step in range(2, 200):
        metrics.write(step, loss=1.0)
    make_room(small_disk)
    for step in range(200, 203):
        metrics.write(step, loss=1.0)
    steps = [line["step"] for line in read_metrics(metrics_path(small_disk, "trainer"))]
    assert steps == sorted(steps) and steps[0] == 1 and steps[-3:] == [200, 201, 202]
    assert len(steps) < 150
    assert [record.getMessage() for record in caplog.records] == [
        f"metrics are left out of {small_disk}/metrics/trainer.jsonl: the disk is full"
    ]
    metrics.close()
