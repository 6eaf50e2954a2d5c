"""Appends from asyncio: the loop runs on, the order is kept, and what was asked for is done."""

import asyncio
import threading

import pytest

from pipelinerl.streams import StreamError
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.stream_thread import StreamThread, ThreadWriter
from tests.streams.records import event, there


class Held:
    """A writer of a real stream whose appends wait until they are let through, as where a server is away."""

    def __init__(self, path):
        self._streams = FileStreams(path)
        self._writer = self._streams.writer("events")
        self.may_go = threading.Event()
        self.began = threading.Event()

    def append(self, record):
        self.began.set()
        self.may_go.wait()
        return self._writer.append(record)

    def written(self) -> list[int]:
        return there(self._streams)


def test_what_a_cancelled_task_has_asked_for_is_appended_in_its_place(tmp_path):
    held = Held(tmp_path)

    async def scenario():
        writer = ThreadWriter(held, StreamThread())
        tasks = [asyncio.create_task(writer.append(event(number))) for number in range(3)]
        await asyncio.to_thread(held.began.wait)
        for task in tasks[:2]:
            task.cancel()
        held.may_go.set()
        await tasks[2]
        assert tasks[0].cancelled() and tasks[1].cancelled()

    asyncio.run(scenario())
    assert held.written() == [0, 1, 2]


def test_an_append_that_fails_raises_where_it_was_asked_for(tmp_path):
    class Gone:
        def append(self, record):
            raise StreamError("no answer")

    with pytest.raises(StreamError, match="no answer"):
        asyncio.run(ThreadWriter(Gone(), StreamThread()).append(event(0)))
