"""Conversions on the event loop and in threads."""

import asyncio
import threading

from pipelinerl.clients.off_loop import SHORT, OffLoop


def of_thread(name: str) -> tuple[str, bool]:
    return name, threading.current_thread() is threading.main_thread()


def test_what_is_short_is_converted_on_the_loop_once_the_tokenizer_is_loaded():
    async def conversions():
        off_loop = OffLoop()
        lengths = (1, SHORT, SHORT + 1, None)
        return [await off_loop.run(length, of_thread, str(length)) for length in lengths]

    first, *later = asyncio.run(conversions())
    assert first == ("1", False)
    assert later == [(str(SHORT), True), (str(SHORT + 1), False), ("None", False)]


def test_nothing_waits_on_the_loop_for_a_conversion_in_a_thread():
    async def beside() -> list[bool]:
        off_loop, free = OffLoop(), threading.Event()
        await off_loop.run(None, of_thread, "loads")
        long = asyncio.create_task(off_loop.run(None, free.wait))
        await asyncio.sleep(0)
        during = await off_loop.run(1, of_thread, "beside it")
        long.cancel()
        await asyncio.wait([long])
        cancelled = await off_loop.run(1, of_thread, "beside its thread, which goes on")
        free.set()
        return [during[1], cancelled[1]]

    assert asyncio.run(beside()) == [False, False]
