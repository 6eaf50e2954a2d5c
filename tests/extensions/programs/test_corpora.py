"""Right programs are judged right, and hostile ones get a verdict, harm nobody, and leave nothing."""

import asyncio
import gc
import os
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from unittest.mock import patch

import psutil
import pytest

from extensions.programs.compare import lines
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.judging.isolation import Level
from tests.extensions.programs.corpus import programs

HONEST = tuple(programs("honest.txt"))
HOSTILE = tuple(programs("hostile.txt"))
TENTH = slice(None, None, 10)  # of the programs, in a box; all of them in the soak
PLACES = {
    corpus: [
        pytest.param("sealed", corpus, id="sealed"),
        pytest.param("namespaces", corpus[TENTH], id="namespaces", marks=pytest.mark.engines),
        pytest.param("namespaces", corpus, id="all-at-namespaces", marks=pytest.mark.long),
    ]
    for corpus in (HONEST, HOSTILE)
}
HARMLESS_IN_A_BOX = (
    "writes to /tmp",
    "writes to shared memory",
    "makes a link",
    "changes a mode",
)  # of files
CPU_S = 1.0
AT_ONCE = 3
MADE = ("/tmp/through", "/dev/shm/through")  # what hostile programs try to make
INNOCENT = "```python\nprint(sum(range(int(input()))))\n```"
TASK = ProgramTask([Test("5", "10")]).encoded()


@asynccontextmanager
async def verifier(place="sealed", level=Level.SEALED, **options):
    """Yields a verifier that runs Python in this place alone."""
    made = ProgramVerifier(**options)
    hidden = {"PATH": "/nonexistent"} if place == "sealed" else {}  # where bubblewrap is
    try:
        with patch.dict(os.environ, hidden):
            await made.start(level)
        if place == "namespaces":
            assert made._python.lacks == ""
            made._python._level = Level.PROCESS  # where Python runs in a box from the first
            await made._python._programs.close()
            assert (await made.judged(TASK, INNOCENT)).outcome == "right"
        yield made
    finally:
        await made.close()


def template_of_this():
    """Returns the template that this process has started."""
    (template,) = [each for each in psutil.Process().children() if is_template(each)]
    return template


def is_template(process):
    try:
        return any("extensions.programs." in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


async def outcomes(judge, of_programs, given=None, at_once=AT_ONCE):
    """Returns the outcome of each program by name."""
    free = asyncio.Semaphore(at_once)

    async def outcome(program):
        task = ProgramTask([Test(program.given if given is None else given, program.expected or "through\n")])
        async with free:
            return program.name, (await judge.judged(task.encoded(), program.answer)).outcome

    return dict(await asyncio.gather(*map(outcome, of_programs)))


def unlike(of_programs, found, place="sealed"):
    expected = {program.name: expected_of(program, place) for program in of_programs}
    return {
        name: found[name]
        for name, outcome in expected.items()
        if not re.fullmatch(outcome + "(:.*)?", found[name])
    }


def expected_of(program, place):
    """Returns the pattern of a program's outcome: at `namespaces` it may write files."""
    writes_files = program in HONEST and "files" in program.outcome
    if place == "namespaces" and (writes_files or program.name.removeprefix("files: ") in HARMLESS_IN_A_BOX):
        return "right"
    return program.outcome


def judged_in(place, of_programs, **options):
    async def judged():
        async with verifier(place) as judge:
            return await outcomes(judge, of_programs, **options)

    return unlike(of_programs, asyncio.run(judged()), place)


@pytest.mark.parametrize(("place", "of_programs"), PLACES[HONEST])
def test_right_programs_are_judged_right_or_say_what_the_level_lacks(place, of_programs):
    assert judged_in(place, of_programs) == {}


def test_right_programs_print_the_same_in_a_plain_interpreter(tmp_path):
    wrong = [
        program.name for program in HONEST if not lines(plain_output(program, tmp_path), program.expected)
    ]
    assert wrong == []


def plain_output(program, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(program.source)
    given = tmp_path / "input"
    given.write_text(program.given)
    with given.open() as opened:
        command = [sys.executable, "-X", "utf8", str(file)]
        done = subprocess.run(command, stdin=opened, capture_output=True, encoding="utf-8", cwd=tmp_path)
    return done.stdout if done.returncode == 0 else f"status {done.returncode}"


@pytest.mark.long
@pytest.mark.parametrize("place", ["sealed", "namespaces"])
def test_right_programs_are_judged_right_on_a_busy_machine(place):
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        assert judged_in(place, HONEST, at_once=8) == {}
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("place", "of_programs"), PLACES[HOSTILE])
def test_hostile_programs_get_a_verdict_and_leave_nothing(place, of_programs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)

    async def judged():
        async with verifier(place, cpu_s=CPU_S, memory_bytes=1 << 28) as judge:
            template = template_of_this()
            found = await outcomes(judge, of_programs, f"{secret}\n{os.getpid()}\n{template.pid}\n")
            assert template.is_running()
            while template.children():  # of boxes, one that was killed is reaped after its verdict
                await asyncio.sleep(0.01)
            assert (await judge.judged(TASK, INNOCENT)).outcome == "right"
            return found

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(f"{secret}.socket")
    listening.setblocking(False)
    there = {file for file in MADE if os.path.exists(file)}
    before = len(os.listdir("/proc/self/fd"))
    found = asyncio.run(judged())
    with listening, pytest.raises(BlockingIOError):
        listening.recv(100)
    assert unlike(of_programs, found, place) == {}
    assert secret.read_text() == "secret" and oct(secret.stat().st_mode)[-3:] == "644"
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before - 1
    assert {file for file in MADE if os.path.exists(file)} <= there


@pytest.mark.parametrize(
    "kind", ["time", "memory", "output", "bombs", "files", "network", "secrets", "processes"]
)
def test_each_kind_has_programs(kind):
    assert len([program for program in HOSTILE if program.kind == kind]) >= 5
