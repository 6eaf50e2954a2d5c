"""The client of the judging service: what it asks again, and when it gives up."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipelinerl.judging.client import JudgeError, JudgingClient
from pipelinerl.judging.options import JudgingConfig
from pipelinerl.judging.wire import (
    LONGEST_FRAME,
    LONGEST_TEXT,
    Encoded,
    FrameError,
    Judgement,
    Question,
    Renewed,
    Reply,
    frame,
    read_frame,
)

RIGHT = Judgement(1.0, True, "right")
Answering = Callable[[Question], Reply | None]


async def serving(socket: Path, reply: Answering) -> asyncio.Server:
    """Replies to every question; where there is no reply, the connection is closed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (question := await read_frame(reader, Question)) and (replied := reply(question)):
            writer.write(frame(replied))
        writer.close()

    return await asyncio.start_unix_server(serve, socket)


def asked(
    tmp_path: Path, reply: Answering, ask: Callable[[JudgingClient], Awaitable], **options: object
) -> object:
    async def scenario():
        client = JudgingClient(tmp_path / "socket", JudgingConfig(**options))
        async with await serving(tmp_path / "socket", reply):
            try:
                return await ask(client)
            finally:
                assert client.waiting == 0
                await client.close()

    return asyncio.run(scenario())


def test_what_was_asked_when_the_service_ended_is_asked_again(tmp_path):
    seen = []

    def reply(question: Question) -> Reply | None:
        seen.append(question.text)
        return Reply(question.number, RIGHT) if len(seen) > 4 else None

    async def ask(client: JudgingClient):
        return await asyncio.gather(*(client.judged("v", None, str(i)) for i in range(8)))

    assert asked(tmp_path, reply, ask) == [RIGHT] * 8
    assert set(seen) == set(map(str, range(8))) and len(seen) >= 12


def test_a_service_that_begins_later_is_waited_for(tmp_path, monkeypatch):
    connect = asyncio.open_unix_connection
    failed = asyncio.Event()

    async def connected(path: str):
        try:
            return await connect(path)
        except OSError:
            failed.set()
            raise

    monkeypatch.setattr(asyncio, "open_unix_connection", connected)

    async def scenario():
        client = JudgingClient(tmp_path / "socket", JudgingConfig())
        judgement = asyncio.create_task(client.judged("v", None, "a"))
        await failed.wait()
        async with await serving(tmp_path / "socket", lambda question: Reply(question.number, RIGHT)):
            assert await judgement == RIGHT
            await client.close()

    asyncio.run(scenario())


def test_a_connection_that_breaks_while_a_question_is_written_is_made_again(tmp_path):
    async def scenario():
        client = JudgingClient(tmp_path / "socket", JudgingConfig())
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "socket"))
            listening.listen()
            await client.connect()
            listening.accept()[0].close()
        (tmp_path / "socket").unlink()
        judgement = asyncio.create_task(client.judged("v", None, "a"))
        async with await serving(tmp_path / "socket", lambda question: Reply(question.number, RIGHT)):
            assert await judgement == RIGHT
            await client.close()

    asyncio.run(scenario())


def test_a_verifier_that_fails_is_asked_again_and_then_given_up(tmp_path):
    seen = []

    def reply(question: Question) -> Reply:
        seen.append(question.text)
        return Reply(question.number, failed="HTTPError: 503")

    with pytest.raises(JudgeError, match="v: HTTPError: 503"):
        asked(tmp_path, reply, lambda client: client.judged("v", None, "a"), retries=2)
    assert seen == ["a"] * 3


def test_a_service_that_says_nothing_is_given_up(tmp_path):
    def reply(question: Question) -> Reply:
        return Reply(question.number + 1000, RIGHT)

    async def ask(client: JudgingClient):
        return await client.judged("v", None, "a")

    with pytest.raises(JudgeError, match="no reply within 0.1 s"):
        asked(tmp_path, reply, ask, queue_s=0.06, verdict_s=0.02, retries=0)


def test_a_text_of_megabytes_and_half_a_surrogate_pair(tmp_path):
    seen = []

    def reply(question: Question) -> Reply:
        seen.append(question.text)
        return Reply(question.number, RIGHT)

    async def ask(client: JudgingClient):
        too_long = await client.judged("v", None, "a" * (LONGEST_TEXT + 1))
        return too_long.outcome, await client.judged("v", None, "\ud800")

    assert asked(tmp_path, reply, ask) == ("undecided:length", RIGHT)
    assert seen == ["?"]


def test_a_task_that_is_too_long_to_send_is_the_judges_failure(tmp_path):
    def reply(question: Question) -> Reply:
        raise AssertionError("it was sent")

    with pytest.raises(JudgeError, match="v: a frame of .* bytes; at most"):
        asked(tmp_path, reply, lambda client: client.judged("v", bytes(LONGEST_FRAME), "a"))


@pytest.mark.parametrize(
    "sent", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1", b"\x00\x00", b"\x00\x00\x00\x09a"]
)
def test_what_is_no_frame_is_refused(sent):
    async def scenario():
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        return await read_frame(reader, Question)

    with pytest.raises(FrameError):
        asyncio.run(scenario())


def test_a_renewed_task_is_made_anew_each_time_that_it_is_sent(tmp_path):
    sent = []
    numbers = itertools.count()

    def reply(question: Question) -> Reply | None:
        sent.append(question.task)
        return Reply(question.number, RIGHT) if len(sent) == 3 else None

    task = Renewed(lambda: Encoded(b"%d" % next(numbers)))
    assert asked(tmp_path, reply, lambda client: client.judged("one", task, "")) == RIGHT
    assert sent == [b"0", b"1", b"2"]
