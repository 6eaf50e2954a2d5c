"""The judging service over its socket: who may ask, and how much it reads."""

import asyncio
import os
import pickle
from pathlib import Path

from pipelinerl.judging import service
from pipelinerl.judging.measurements import Measurements
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.service import Service
from pipelinerl.judging.wire import Judgement, Question, Reply, frame, read_frame

RIGHT = Judgement(1.0, True, "right")


class Judging:
    """Stands for the workers: judges at once."""

    async def judged(self, verifier: str, task: bytes, text: str) -> Judgement:
        return RIGHT


async def said(socket: Path, sent: bytes) -> Reply | None:
    """Returns what the service says to bytes, or None where it closes the connection."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(sent)
    reply = await read_frame(reader, Reply)
    writer.close()
    return reply


def test_connections_that_break_take_nothing_of_the_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "LONGEST_QUEUE", 2)
    options = JudgingConfig(workers=1)

    async def scenario():
        serving = Service(Judging(), options, Measurements(1), {os.getuid()})
        async with await asyncio.start_unix_server(serving.serve, tmp_path / "socket"), asyncio.timeout(10):
            for _ in range(3):
                assert await said(tmp_path / "socket", b"\xff\xff\xff\xff") is None
            question = frame(Question(7, "v", pickle.dumps(None), "a"))
            for _ in range(3):
                assert await said(tmp_path / "socket", question) == Reply(7, RIGHT)

    asyncio.run(scenario())
