"""Each defence is needed: without it, a program of its kind gets through."""

import asyncio
import sys

import pytest

from extensions.programs import pool
from tests.extensions.programs.corpus import Program
from tests.extensions.programs.test_corpora import HOSTILE, outcomes, verifier

BY_NAME = {program.name: program for program in HOSTILE}


def made(name, source):
    return Program(name, "undecided", source, "", "")


THROUGH = {
    "files": BY_NAME["files: reads the passwords"],
    "calls": BY_NAME["network: a socket"],
    "memory": made("memory", 'block = bytearray(400 << 20)\nprint("through")\n'),
    "modules": BY_NAME["secrets: what this project imported"],
    "environment": BY_NAME["secrets: its own environment"],
    "descriptors": BY_NAME["files: descriptors of others"],
    "threads": BY_NAME["bombs: threads"],
    "time": made("time", 'import time\ntime.sleep(2)\nprint("through")\n'),
}


async def outcome(defence):
    async with verifier(cpu_s=1.0 if defence == "time" else 10.0, memory_bytes=1 << 28) as judge:
        (found,) = (await outcomes(judge, [THROUGH[defence]])).values()
        return found


@pytest.mark.parametrize("defence", THROUGH)
def test_without_a_defence_a_program_gets_through(monkeypatch, defence):
    assert asyncio.run(outcome(defence)) != "right"
    command = (sys.executable, "-m", "tests.extensions.programs.weakened", defence)
    monkeypatch.setattr(pool, "COMMAND", command)
    assert asyncio.run(outcome(defence)) == "right"
