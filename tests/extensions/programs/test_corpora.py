"""Right programs are judged right, and hostile ones get a verdict, harm nobody, and leave nothing."""

import asyncio
import gc
import os
import re
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import psutil
import pytest

from extensions.programs.compare import lines
from extensions.programs.tasks import ProgramTask, Test
from extensions.programs.verifier import ProgramVerifier
from pipelinerl.judging.isolation import Level
from tests.extensions.programs.corpus import programs

HONEST = programs("honest.txt")
HOSTILE = programs("hostile.txt")
CPU_S = 1.0
AT_ONCE = 3
MADE = ("/tmp/through", "/dev/shm/through")  # what hostile programs try to make
INNOCENT = "```python\nprint(sum(range(int(input()))))\n```"
TASK = ProgramTask([Test("5", "10")]).encoded()


@asynccontextmanager
async def verifier(**options):
    made = ProgramVerifier(**options)
    try:
        await made.start(Level.SEALED)
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


def unlike(of_programs, found):
    return {
        p.name: found[p.name] for p in of_programs if not re.fullmatch(p.outcome + "(:.*)?", found[p.name])
    }


def test_right_programs_are_judged_right_or_say_what_the_level_lacks():
    async def judged():
        async with verifier() as judge:
            return await outcomes(judge, HONEST)

    assert unlike(HONEST, asyncio.run(judged())) == {}


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
def test_right_programs_are_judged_right_on_a_busy_machine():
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]

    async def judged():
        async with verifier() as judge:
            return await outcomes(judge, HONEST, at_once=8)

    try:
        assert unlike(HONEST, asyncio.run(judged())) == {}
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_hostile_programs_get_a_verdict_and_leave_nothing(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)

    async def judged():
        async with verifier(cpu_s=CPU_S, memory_bytes=1 << 28) as judge:
            template = template_of_this()
            found = await outcomes(judge, HOSTILE, f"{secret}\n{os.getpid()}\n{template.pid}\n")
            assert template.is_running() and template.children() == []
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
    assert unlike(HOSTILE, found) == {}
    assert secret.read_text() == "secret" and oct(secret.stat().st_mode)[-3:] == "644"
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before - 1
    assert {file for file in MADE if os.path.exists(file)} <= there


@pytest.mark.parametrize(
    "kind", ["time", "memory", "output", "bombs", "files", "network", "secrets", "processes"]
)
def test_each_kind_has_programs(kind):
    assert len([program for program in HOSTILE if program.kind == kind]) >= 5
