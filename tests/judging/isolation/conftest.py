"""A pool of workers, at each level, whose judge executes what it judges."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelinerl.judging.isolation import Level, Limits, imported_paths, strongest_level
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.workers import Setup, VerifierError, Workers
from tests.judging.isolation.hostile import NUMBERS, PREAMBLE
from tests.judging.processes import templates
from tests.limits import HANG_S
from tests.pipeline.runs import wait_for

LIMITS = Limits(memory_bytes=1 << 27)
JUDGE = "tests.judging.hostile_judge.ExecutingJudge"


@dataclass
class Court:
    """A pool, and the objects that its texts try to harm."""

    workers: Workers
    runner: asyncio.Runner
    marker: Path
    victim: int

    def judged(self, text: str, verdict_s: float = HANG_S) -> Judgement | None:
        """Returns the judgement, or None if the text raised."""
        self.workers.verdict_s = verdict_s
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

    def wait_for_the_end_of_all(self) -> None:
        """Waits until no process of a verdict remains."""
        wait_for(lambda: not any(template.children(recursive=True) for template in templates()))


@pytest.fixture(scope="module")
def secret_variable() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKEN", "a-secret-of-the-service")
        yield "a-secret-of-the-service"


def court(level: Level, directory: Path, runner: asyncio.Runner, victim: int) -> Court:
    strongest, reason = strongest_level(imported_paths())
    if level is Level.SEALED and strongest is not level:
        pytest.skip(reason)
    workers = Workers(Setup(JUDGE, {}, level, LIMITS), workers=2, verdict_s=HANG_S)
    runner.run(workers.start())
    marker = directory / "marker"
    (directory / "marker.secret").write_text("a-secret-of-the-service")
    return Court(workers, runner, marker, victim)


@pytest.fixture(scope="module", params=list(Level))
def at_each_level(request, secret_variable, tmp_path_factory) -> Iterator[Court]:
    yield from opened(request.param, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def sealed(secret_variable, tmp_path_factory) -> Iterator[Court]:
    yield from opened(Level.SEALED, tmp_path_factory.mktemp("outside"))


def opened(level: Level, directory: Path) -> Iterator[Court]:
    with asyncio.Runner() as runner, subprocess.Popen(["sleep", "1000"]) as victim:
        found = court(level, directory, runner, victim.pid)
        yield found
        runner.run(found.workers.close())
        assert victim.poll() is None
        victim.kill()
