"""A server that has no room, in memory or on its disk: an append waits for it, and reading goes on."""

import logging
import threading

import pytest
import redis

from contracts.records import SamplerState
from pipelinerl.streams.redis import RedisStreams
from pipelinerl.streams.redis_server import RedisServer
from tests.pipeline.runs import wait_for
from tests.small_disk import fill, make_room

pytestmark = pytest.mark.engines

RECORDS = [SamplerState(draws=number, state={"order": [7] * 20_000}) for number in range(60)]


@pytest.fixture(autouse=True)
def impatient(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("pipelinerl.streams.full_storage.RETRY_S", 0.05)


class Appending:
    """Appends all records in a thread of its own."""

    def __init__(self, url: str):
        self._writer = RedisStreams(url, "run").writer("events")
        self._thread = threading.Thread(target=self._append, daemon=True)
        self._thread.start()

    def _append(self) -> None:
        for record in RECORDS:
            self._writer.append(record)

    def join(self) -> None:
        self._thread.join()


def written(url: str) -> list[int]:
    reader = RedisStreams(url, "run").reader("events")
    return [entry.record.draws for entry in reader.read(timeout_s=0)]


def test_memory_that_is_full_is_waited_for(tmp_path, caplog):
    with RedisServer(tmp_path / "redis") as server:
        admin = redis.Redis.from_url(server.url)
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 600_000)
        appending = Appending(server.url)
        wait_for(lambda: caplog.records)
        assert "is full: appending to events waits for room" in caplog.records[0].getMessage()
        assert 0 < len(written(server.url)) < len(RECORDS)
        admin.config_set("maxmemory", 0)
        appending.join()
        assert written(server.url) == [record.draws for record in RECORDS]
    assert "has room again" in caplog.records[-1].getMessage()


def test_a_disk_that_is_full_is_waited_for_and_what_was_appended_outlives_the_server(small_disk, caplog):
    server = RedisServer(small_disk / "redis")
    with server:
        fill(small_disk, leaving=400_000)
        appending = Appending(server.url)
        wait_for(lambda: caplog.records)
        assert "MISCONF" in caplog.records[0].getMessage()
        assert server.state == "ready" and server.status is None
        make_room(small_disk)
        appending.join()
    with server:
        assert written(server.url) == [record.draws for record in RECORDS]
