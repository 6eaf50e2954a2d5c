"""Programs in processes of their own, forked from one that has imported torch and other large packages.

The same programs, started in a moment. What happens before `main`, on the way from the command line, is for
tests that run the command itself.
"""

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.conformance.processes import PRELOAD, fork_server
from pipelinerl.paths import ROOT

PRELOAD.append("tests.preload")


class Forked:
    """`python *arguments`, with the part of `subprocess.Popen`'s interface that tests use."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] = os.environ,
        directory: Path | str = ROOT,
        outputs: Sequence[Path] | None = None,
    ):
        """Starts the program. Stdout and stderr are appended to `outputs`, or to files of its own."""
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        self._outputs = outputs or [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        given = (arguments, dict(environment), directory, self._outputs)
        self._process = fork_server().Process(target=_become, args=given, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked program", timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns the text of stdout and stderr."""
        self.wait(timeout)
        out, err = (path.read_text() if path.exists() else "" for path in self._outputs)
        return out, err

    def first_line(self) -> str:
        """Waits for the first line on stdout; returns "" if the program ends without one."""
        out = self._outputs[0]
        while not (out.exists() and "\n" in out.read_text()):
            if self.returncode is not None:
                return ""
            time.sleep(0.005)
        return out.read_text().splitlines()[0]


def run_program(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs `python *arguments` to its end, with the options of `Forked`."""
    program = Forked(*arguments, **options)
    out, err = program.communicate()
    return subprocess.CompletedProcess(arguments, program.returncode, out, err)


def _become(
    arguments: Sequence[str], environment: Mapping[str, str], directory: Path | str, outputs: Sequence[Path]
) -> None:
    for number, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    gc.freeze()  # a program that collects garbage does not walk through what was imported for all
    multiprocessing.current_process().daemon = False  # it may have children, as any program
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")
