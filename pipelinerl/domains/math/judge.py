"""Whether an answer equals the reference, decided in processes that may be lost.

An expression can keep a computer algebra system busy for ever, or fill the memory. So every verdict has a
time and a memory limit, and what exceeds them costs that one verdict: the process is ended and replaced.
"""

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from enum import StrEnum
from functools import partial

from pebble import ProcessExpired, ProcessPool

from pipelinerl.domains.math.boxed import last_boxed
from pipelinerl.domains.math.equality import begin, equal

LEAST_MEMORY_BYTES = 1 << 30


class Verdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"  # no box, or nothing in it
    UNDECIDED = "undecided"  # beyond the limits of length, time or memory


class Judge:
    """workers: processes.
    timeout_s: for one verdict, once it has begun.
    memory_bytes: address space of one process, at least 1 GiB.
    max_characters: of a boxed answer.
    compare: (reference, answer) -> whether they are equal; called in a worker.
    """

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        memory_bytes: int,
        max_characters: int,
        compare: Callable[[str, str], bool] = equal,
    ):
        if workers < 1 or timeout_s <= 0 or memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError("judge: workers and timeout_s must be positive, memory_bytes at least 1 GiB")
        self._timeout_s = timeout_s
        self._max_characters = max_characters
        self._compare = compare
        self._new_pool = partial(
            ProcessPool,
            workers,
            initializer=begin,
            initargs=(memory_bytes,),
            context=multiprocessing.get_context("spawn"),
        )
        self._pool = self._new_pool()

    async def __call__(self, text: str, reference: str) -> Verdict:
        """Returns the verdict on the last boxed answer in `text`."""
        answer = last_boxed(text)
        if answer is None:
            return Verdict.NO_ANSWER
        if len(answer) > self._max_characters:
            return Verdict.UNDECIDED
        try:
            return Verdict.RIGHT if await self._equal(reference, answer) else Verdict.WRONG
        except (TimeoutError, ProcessExpired, MemoryError, RecursionError):
            return Verdict.UNDECIDED

    async def _equal(self, reference: str, answer: str) -> bool:
        try:
            return await self._asked(reference, answer)
        except BrokenProcessPool:  # a process died that had nothing to do, and the pool with it
            return await self._asked(reference, answer)

    async def _asked(self, reference: str, answer: str) -> bool:
        if not self._pool.active:
            self._pool = self._new_pool()
        future = self._pool.schedule(self._compare, args=[reference, answer], timeout=self._timeout_s)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
