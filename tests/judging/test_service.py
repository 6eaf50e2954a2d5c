"""The judging service: what a connection, or the machine, does to it costs no later question."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.measurements import Measurements
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.service import Service
from pipelinerl.judging.wire import Judgement
from tests.limits import HANG_S

RIGHT = Judgement(1.0, True, "right")
OPTIONS = JudgingConfig(workers=1, retries=0, queue_s=HANG_S, verdict_s=HANG_S)


class Answering:
    """Workers that say what they are told to, without any process."""

    def __init__(self, say: Callable[[str], Awaitable[Judgement]]):
        self._say = say

    async def judged(self, verifier: str, task: bytes, text: str) -> Judgement:
        return await self._say(text)


def served(socket: Path, workers: Answering, ask: Callable[[JudgingClient], Awaitable]) -> object:
    async def scenario():
        service = Service(workers, {}, OPTIONS, Measurements(1), {os.getuid()})
        client = JudgingClient(socket, OPTIONS)
        async with await asyncio.start_unix_server(service.serve, socket):
            try:
                return await ask(client)
            finally:
                await client.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize("sent", [b"\x00\x00\x00\x03xxx", b"\xff\xff\xff\xff", b"\x00\x00"])
def test_connections_that_break_take_no_room_from_later_ones(tmp_path, monkeypatch, sent):
    monkeypatch.setattr("pipelinerl.judging.service.LONGEST_QUEUE", 2)
    socket = tmp_path / "socket"

    async def right(text: str) -> Judgement:
        return RIGHT

    async def ask(client: JudgingClient) -> Judgement:
        for _ in range(3):
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        return await client.judged("v", None, "a")

    assert served(socket, Answering(right), ask) == RIGHT


def test_a_machine_that_starts_no_process_is_told_at_once(tmp_path):
    async def too_many(text: str) -> Judgement:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(JudgeError, match="Too many open files"):
        served(tmp_path / "socket", Answering(too_many), lambda client: client.judged("v", None, "a"))
