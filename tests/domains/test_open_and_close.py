"""A domain is opened before the first rollout and closed on every way out, also as a part of another."""

import asyncio
import logging

import pytest

from pipelinerl.domains import base
from pipelinerl.domains.base import opened
from pipelinerl.domains.mixture import Mixture
from pipelinerl.domains.wrapped import Wrapped
from tests.samplers.domains import Labelled


class Recorded(Labelled):
    """log: gets every call. fails: the name of the call that raises."""

    def __init__(self, name: str, log: list[str], fails: str = ""):
        super().__init__(3)
        self._name, self._log, self._fails = name, log, fails

    async def open(self) -> None:
        self._call("open")

    async def close(self) -> None:
        self._call("close")

    def _call(self, name: str) -> None:
        self._log.append(f"{name} {self._name}")
        if name == self._fails:
            raise OSError(f"{name} fails")


async def use(domain: base.Domain, log: list[str], error: BaseException | None = None) -> None:
    async with opened(domain):
        log.append("use")
        if error:
            raise error


@pytest.mark.parametrize("error", [None, ValueError("in the block"), asyncio.CancelledError()])
def test_it_is_closed_when_the_block_ends_and_when_it_raises(error):
    log: list[str] = []
    if error is None:
        asyncio.run(use(Recorded("a", log), log))
    else:
        with pytest.raises(type(error)):
            asyncio.run(use(Recorded("a", log), log, error))
    assert log == ["open a", "use", "close a"]


def test_one_that_cannot_close_is_logged_and_ends_nothing(caplog):
    log: list[str] = []
    with caplog.at_level(logging.ERROR):
        asyncio.run(use(Recorded("a", log, fails="close"), log))
    assert "has not closed" in caplog.text and "close fails" in caplog.text


def test_one_that_takes_too_long_to_close_is_left(monkeypatch, caplog):
    monkeypatch.setattr(base, "CLOSE_S", 0.01)

    class Endless(Recorded):
        async def close(self) -> None:
            await asyncio.Event().wait()

    log: list[str] = []
    asyncio.run(use(Endless("a", log), log))
    assert "TimeoutError" in caplog.text


def test_one_that_takes_too_long_to_open_is_named(monkeypatch):
    monkeypatch.setattr(base, "OPEN_S", 0.01)

    class Endless(Recorded):
        async def open(self) -> None:
            await asyncio.Event().wait()

    log: list[str] = []
    with pytest.raises(TimeoutError, match="the domain labelled has not opened within"):
        asyncio.run(use(Endless("a", log), log))
    assert log == []


def test_a_wrapper_opens_and_closes_the_domain_within():
    log: list[str] = []
    asyncio.run(use(Wrapped(Recorded("a", log)), log))
    assert log == ["open a", "use", "close a"]


def test_a_mixture_opens_and_closes_its_parts():
    log: list[str] = []
    asyncio.run(use(Mixture({"a": Recorded("a", log), "b": Recorded("b", log)}), log))
    assert log == ["open a", "open b", "use", "close b", "close a"]


def test_a_mixture_of_which_a_part_cannot_open_closes_those_before_it():
    log: list[str] = []
    parts = {"a": Recorded("a", log), "b": Recorded("b", log, fails="open"), "c": Recorded("c", log)}
    with pytest.raises(OSError, match="open fails"):
        asyncio.run(use(Mixture(parts), log))
    assert log == ["open a", "open b", "close a"]
