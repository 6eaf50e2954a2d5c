"""Pages of docs/ as programs: their files are written and their commands are run, in the order of the page.

A block in python or yaml whose first line is `# PATH` is a file of the reader's directory. A block without a
language has commands. A block of `text` is what the commands before it print: `...` stands for anything, and
a number for any number.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pipelinerl.paths import ROOT
from tests.forked import Forked
from tests.limits import HANG_S

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")
SETUP = """PROJECT=/path/to/pipelinerl
source $PROJECT/.venv/bin/activate
mkdir my_research && cd my_research
"""
INSTALLING = re.compile(r"(.*/)?pip|make|python3\.11")  # commands that a test leaves out


def blocks(page: str) -> list[tuple[str, str]]:
    """Returns the language and the text of every block of a page."""
    return BLOCK.findall((ROOT / "docs" / f"{page}.md").read_text())


def commands(block: str) -> Iterator[list[str]]:
    """Yields the words of every command of a block, without its comment."""
    for line in block.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def execute(page: str, directory: Path, *overrides: str) -> None:
    """Executes a page in a directory. `overrides` are added to every command that launches a run."""
    printed = ""
    for language, block in blocks(page):
        if block == SETUP:
            continue
        if language == "text":
            assert_printed(block, printed)
        elif language in ("python", "yaml"):
            write(directory, block)
        else:
            printed = "".join(run(words, directory, overrides) for words in commands(block))


def write(directory: Path, block: str) -> None:
    named = FILE.match(block)
    assert named, f"a block does not begin with the name of its file: {block}"
    file = directory / named[1]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block)


def run(words: list[str], directory: Path, overrides: tuple[str, ...]) -> str:
    """Runs a command in a directory. Returns what it prints, and fails if it fails."""
    if INSTALLING.fullmatch(words[0]) or words[0] == "source":
        return ""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    words = [word.replace("$PROJECT", str(ROOT)) for word in words]
    while re.match(r"\w+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if words[0] == "python" and words[1] == f"{ROOT}/launch.py":
        words += overrides
    if words[0] == "python" and "pytest" not in words:
        program = Forked(*words[1:], environment=environment, directory=directory)
    else:
        words[0] = words[0].replace("python", sys.executable)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        program = subprocess.Popen(words, cwd=directory, env=environment, **pipes)
    out, err = program.communicate(timeout=HANG_S)
    assert program.returncode == 0, f"{shlex.join(words)}: {out}{err}"
    return out


def assert_printed(block: str, printed: str) -> None:
    """Asserts that every line of a block is a line of what was printed."""
    lines = "\n".join(map(comparable, printed.splitlines()))
    for line in filter(str.strip, block.splitlines()):
        pattern = re.escape(comparable(line)).replace(re.escape("..."), ".*")
        assert re.search(f"^{pattern}$", lines, re.MULTILINE), f"{line!r} is not in: {printed}"


def comparable(line: str) -> str:
    """Returns the line with every number as 0 and with single spaces."""
    return re.sub(r"[-+]?\d+(\.\d+)?(e-?\d+)?", "0", " ".join(line.split()))
