"""Buffers are filled while others are used: in order, not too many, and no more once nobody takes them."""

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from contracts.fill_ahead import AHEAD, filled_ahead


def buffers(count: int) -> Iterator[torch.Tensor]:
    return (torch.zeros(1) for _ in range(count))


class Filler:
    """Fills buffers with numbers, and tells how many it has begun."""

    def __init__(self, fails_at: int | None = None):
        self.fails_at = fails_at
        self.begun = threading.Semaphore(0)
        self.count = 0

    def __call__(self, buffer: torch.Tensor) -> None:
        self.count += 1
        self.begun.release()
        if self.count == self.fails_at:
            raise ArithmeticError("lost")
        buffer.fill_(self.count)


def test_every_buffer_comes_once_and_in_order():
    assert [int(buffer) for buffer in filled_ahead(Filler(), buffers(50))] == list(range(1, 51))


def test_the_next_are_filled_while_one_is_used_and_no_more_than_that():
    fill = Filler()
    filled = filled_ahead(fill, buffers(50))
    next(filled)
    for _ in range(1 + AHEAD):
        fill.begun.acquire()
    for taken in range(1, 40):
        assert fill.count <= taken + AHEAD
        next(filled)
        fill.begun.acquire()


def test_an_error_comes_after_what_was_filled_before_it():
    filled = filled_ahead(Filler(fails_at=3), buffers(50))
    assert [int(next(filled)), int(next(filled))] == [1, 2]
    with pytest.raises(ArithmeticError):
        next(filled)


def test_nothing_is_filled_once_nobody_takes_it():
    fill = Filler()
    before = set(threading.enumerate())
    filled = filled_ahead(fill, buffers(50))
    next(filled)
    (thread,) = set(threading.enumerate()) - before
    filled.close()
    thread.join()
    assert fill.count <= 1 + AHEAD


def test_an_error_keeps_nothing_that_the_garbage_collector_must_find():
    fill = Filler(fails_at=1)
    gone = weakref.ref(fill)
    before = set(threading.enumerate())
    filled = filled_ahead(fill, buffers(50))
    gc.disable()
    try:
        next(filled)
    except ArithmeticError:
        for thread in set(threading.enumerate()) - before:
            thread.join()
    finally:
        gc.enable()
        del fill, filled
    assert gone() is None
