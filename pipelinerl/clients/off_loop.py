"""Runs conversions of conversations in threads, and short ones on the event loop, which takes less time."""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

SHORT = 1000  # characters of a prompt, or tokens of an answer, that cost less than a thread's start and end


class OffLoop:
    """The conversions of a process's clients. The first one loads the tokenizer, which takes seconds.

    As long as one is in a thread, the others are too: it may hold the conversations' lock.
    """

    def __init__(self) -> None:
        self._in_threads = 0
        self._is_loaded = False

    async def run(
        self, length: int | None, convert: Callable[Given, Result], *given: Given.args, **more: Given.kwargs
    ) -> Result:
        """Returns what the function returns. `length`: see `SHORT`; None if it is unknown."""
        if self._is_loaded and self._in_threads == 0 and length is not None and length <= SHORT:
            return convert(*given, **more)
        self._in_threads += 1
        thread = asyncio.create_task(asyncio.to_thread(convert, *given, **more))
        thread.add_done_callback(self._left_thread)
        result = await asyncio.shield(thread)  # of one that is cancelled the thread goes on
        self._is_loaded = True
        return result

    def _left_thread(self, thread: asyncio.Task[Any]) -> None:
        self._in_threads -= 1
