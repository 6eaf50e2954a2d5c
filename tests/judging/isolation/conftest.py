"""A pool of workers, at each level, whose judge executes what it judges."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pipelinerl.judging.isolation import Level, Limits, imported_paths, strongest_level
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.workers import Setup, VerifierError, Workers
from tests.judging.isolation.hostile import NUMBERS, PREAMBLE

SHORT_S = 0.4
LONG_S = 20
LIMITS = Limits(memory_bytes=1 << 27, cpu_s=20)
JUDGE = "tests.judging.hostile_judge.ExecutingJudge"


@dataclass
class Court:
    """A pool, and the objects that its texts try to harm."""

    workers: Workers
    runner: asyncio.Runner
    marker: Path
    victim: int

    def judged(self, text: str) -> Judgement | None:
        """Returns the judgement, or None if the text raised."""
        names = PREAMBLE.format(
            marker=str(self.marker), service=os.getpid(), victim=self.victim, numbers=NUMBERS
        )
        try:
            return self.runner.run(self.workers.judged("executing", b"task", names + text))
        except VerifierError:
            return None

    def gets_through(self, text: str) -> bool:
        judgement = self.judged(text + "\nreward = 1")
        return judgement is not None and judgement.success

    def survivors(self) -> list[psutil.Process]:
        """Returns the remaining processes of verdicts, a moment after the last one."""
        ends = time.monotonic() + 1
        while time.monotonic() < ends and (left := self._left()):
            time.sleep(0.01)
        return left

    def _left(self) -> list[psutil.Process]:
        return psutil.Process(self.workers.template_process).children(recursive=True)


@pytest.fixture(scope="module")
def secret_variable() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN", "a-secret-of-the-service")
        yield "a-secret-of-the-service"


def court(level: Level, verdict_s: float, directory: Path, runner: asyncio.Runner, victim: int) -> Court:
    strongest, reason = strongest_level(imported_paths())
    if level is Level.SEALED and strongest is not level:
        pytest.skip(reason)
    workers = Workers(Setup(JUDGE, {}, level, LIMITS), workers=2, verdict_s=verdict_s)
    runner.run(workers.start())
    marker = directory / "marker"
    (directory / "marker.secret").write_text("a-secret-of-the-service")
    return Court(workers, runner, marker, victim)


@pytest.fixture(scope="module", params=list(Level))
def at_each_level(request, secret_variable, tmp_path_factory) -> Iterator[Court]:
    yield from opened(request.param, LONG_S, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def in_short_time(request, secret_variable, tmp_path_factory) -> Iterator[Court]:
    yield from opened(request.param, SHORT_S, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def sealed(secret_variable, tmp_path_factory) -> Iterator[Court]:
    yield from opened(Level.SEALED, LONG_S, tmp_path_factory.mktemp("outside"))


def opened(level: Level, verdict_s: float, directory: Path) -> Iterator[Court]:
    with asyncio.Runner() as runner, subprocess.Popen(["sleep", "1000"]) as victim:
        found = court(level, verdict_s, directory, runner, victim.pid)
        yield found
        runner.run(found.workers.close())
        assert victim.poll() is None
        victim.kill()
