"""The judging service: what a connection, or the machine, does to it costs no later question."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.hosted import HostedVerifier
from pipelinerl.judging.isolation import Level
from pipelinerl.judging.measurements import Measurements
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.service import Service
from pipelinerl.judging.wire import Encoded, Judgement
from tests.limits import HANG_S

RIGHT = Judgement(1.0, True, "right")
OPTIONS = JudgingConfig(workers=1, retries=0, queue_s=HANG_S, verdict_s=HANG_S)


class Answering:
    """Workers that say what they are told to, without any process."""

    def __init__(self, say: Callable[[str], Awaitable[Judgement]]):
        self._say = say

    async def judged(self, verifier: str, task: bytes, text: str) -> Judgement:
        return await self._say(text)


def served(
    socket: Path,
    workers: Answering,
    ask: Callable[[JudgingClient], Awaitable],
    hosted: Mapping[str, HostedVerifier] | None = None,
) -> object:
    async def scenario():
        service = Service(workers, hosted or {}, OPTIONS, Measurements(1), {os.getuid()})
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


def test_a_question_that_nobody_waits_for_is_called_off(tmp_path):
    begun = asyncio.Event()
    called_off = asyncio.Event()

    async def endless(text: str) -> Judgement:
        if text == "b":
            return RIGHT
        begun.set()
        try:
            return await asyncio.Event().wait()
        finally:
            called_off.set()

    async def ask(client: JudgingClient) -> Judgement:
        asking = asyncio.create_task(client.judged("v", None, "a"))
        await begun.wait()
        asking.cancel()
        await called_off.wait()
        return await client.judged("v", None, "b")  # the only worker is free

    assert served(tmp_path / "socket", Answering(endless), ask) == RIGHT


class Hosted(HostedVerifier):
    """Judges two texts at once, and only once it has both."""

    at_once = 2

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)

    async def start(self, level: Level) -> None: ...

    async def judged(self, task: bytes, text: str) -> Judgement:
        async with self._both:
            return RIGHT

    async def close(self) -> None: ...


def test_a_verifier_with_a_number_of_its_own_takes_no_worker(tmp_path):
    async def never(text: str) -> Judgement:
        return await asyncio.Event().wait()

    async def ask(client: JudgingClient) -> list[Judgement]:
        busy = asyncio.create_task(client.judged("v", None, "a"))  # takes the only worker
        both = await asyncio.gather(*(client.judged("hosted", Encoded(b""), "") for _ in range(2)))
        busy.cancel()
        return both

    assert served(tmp_path / "socket", Answering(never), ask, {"hosted": Hosted()}) == [RIGHT, RIGHT]
