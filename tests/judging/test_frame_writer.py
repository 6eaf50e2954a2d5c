"""Frames of one turn of the event loop are written together, in their order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pipelinerl.judging.wire import FrameWriter


@asynccontextmanager
async def stream() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yields the reader of one end of a connection, and the writer of the other."""
    accepted: asyncio.Future = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *ends: accepted.set_result(ends), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    ends = await accepted
    try:
        yield reader, ends[1]
    finally:
        writer.close()
        ends[1].close()
        server.close()


@pytest.mark.asyncio
async def test_frames_of_one_turn_are_one_write():
    async with stream() as (reader, writer):
        frames = FrameWriter(writer)
        writes = []
        right = writer.write
        writer.write = lambda data: writes.append(data) or right(data)
        await asyncio.gather(*(frames.write(b"%d;" % number) for number in range(5)))
        assert await reader.readexactly(10) == b"0;1;2;3;4;"
    assert writes == [b"0;1;2;3;4;"]


@pytest.mark.asyncio
async def test_many_bytes_are_several_writes():
    async with stream() as (reader, writer):
        frames = FrameWriter(writer)
        sizes = []
        right = writer.write
        writer.write = lambda data: sizes.append(len(data)) or right(data)
        await asyncio.gather(*(frames.write(b"x" * 2**15) for _ in range(8)))
        assert await reader.readexactly(2**18) == b"x" * 2**18
    assert max(sizes) <= 2**16 + 2**15 and sum(sizes) == 2**18


@pytest.mark.asyncio
async def test_what_was_written_is_sent_when_it_is_closed():
    async with stream() as (reader, writer):
        frames = FrameWriter(writer)
        await frames.write(b"last")
        frames.close()
        assert await reader.read() == b"last"


@pytest.mark.asyncio
async def test_a_writer_waits_for_a_reader_that_is_slow():
    async with stream() as (reader, writer):
        frames = FrameWriter(writer)
        writer.transport.set_write_buffer_limits(high=1)
        await frames.write(b"x" * 2**24)
        await asyncio.sleep(0)
        waits = asyncio.create_task(frames.write(b"end"))
        done, _ = await asyncio.wait({waits}, timeout=0.05)
        assert not done
        await reader.readexactly(2**24)
        await waits
        assert await reader.readexactly(3) == b"end"
