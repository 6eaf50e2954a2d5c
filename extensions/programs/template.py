"""The process that forks a confined process for each test of a program.

The pool starts `python -m extensions.programs.template` with a socket as its standard input. A program's
process starts with the modules that solutions import, and with none of this project's.
"""

import gc
import os
import resource
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from contracts.support.die_with_parent import die_with_parent
from extensions.programs.boxes import Boxes
from extensions.programs.messages import DESCRIPTORS, KILLED_IN_BOX, LONGEST_SOURCE, ProgramSetup, RunProgram
from extensions.programs.running import OURS, run_program
from extensions.programs.seen import threads_of, waits_of
from pipelinerl.judging.fork_server import ForkServer
from pipelinerl.judging.isolation import Confinement, close_all_but, imported_paths, undumpable
from pipelinerl.judging.isolation.privileges import adopt_orphans, first_when_memory_ends
from pipelinerl.judging.worker_messages import LONGEST_CONTROL, WORDS, Ended, Ready

LOOK_S = 0.02  # between two looks at the threads of processes
WAITS_S = 0.1  # between two looks at their waits
PAUSED_S = 1.0  # between two looks, after which processes are taken as paused
MOST_THREADS = 256


class ProgramTemplate(ForkServer):
    """Forks programs, and ends those that take longer than `wall_s` without their waits for a processor."""

    def __init__(self, control: socket.socket, confinement: Confinement | Boxes, wall_s: float):
        super().__init__(control, RunProgram, DESCRIPTORS, LOOK_S)
        self._confinement = confinement
        self._wall_s = wall_s
        self._waits: defaultdict[int, dict[str, float]] = defaultdict(dict)  # seconds of each thread
        self._waited_s: defaultdict[int, float] = defaultdict(float)  # of which these count
        self._read_waits = 0.0
        self._why_not: dict[int, str] = {}  # of those that were ended
        self._looked = 0.0

    def run(self, request: RunProgram, descriptors: Sequence[int]) -> NoReturn:
        given, output, program, *status = descriptors
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number, descriptor in enumerate((given, output, nowhere)):
            os.dup2(descriptor, number)
        if isinstance(self._confinement, Boxes):
            close_all_but({0, 1, 2, program, *status})
            self._confinement.run(program, *status, request.entry)
        source = os.pread(program, LONGEST_SOURCE, 0)
        close_all_but({0, 1, 2, *self._confinement.descriptors})
        self._confinement.enter()
        run_program(source, request.entry)

    def look(self) -> None:
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return
        if now > self._looked + PAUSED_S:  # this process stood still, and so did the machine or its container
            for process, began in self.began.items():
                self.began[process] += now - max(began, self._looked)
        self._looked = now
        since_s = now - self._read_waits
        reads_waits = since_s >= WAITS_S
        self._read_waits = now if reads_waits else self._read_waits
        for process in self.began.keys() - self._why_not.keys():
            threads = threads_of(process)
            if reads_waits:
                self._add_waits(process, threads, since_s)
            if now - self.began[process] - self._waited_s[process] > self._wall_s:
                self._end_for(process, "time")
            elif len(threads) > MOST_THREADS:
                self._end_for(process, "processes")

    def _add_waits(self, process: int, threads: list[str], since_s: float) -> None:
        """Adds the waits of all threads, which may wait in turn: at most the time since the last look."""
        waits = self._waits[process]
        before_s = sum(waits.values())
        waits |= waits_of(threads)
        self._waited_s[process] += min(sum(waits.values()) - before_s, since_s)

    def _end_for(self, process: int, why_not: str) -> None:
        self._why_not[process] = why_not
        os.kill(process, signal.SIGKILL)

    def report(self, process: int, worker: int, status: int, used: resource.struct_rusage) -> Ended:
        ended = super().report(process, worker, status, used)
        self._waits.pop(process, None)
        waited_s = self._waited_s.pop(process, 0.0) + WAITS_S
        spent_s = time.monotonic() - self.began[process] - waited_s
        why_not = self._why_not.pop(process, "")
        code = ended.code
        if isinstance(self._confinement, Boxes) and code == KILLED_IN_BOX:
            code = -signal.SIGKILL
        return msgspec.structs.replace(ended, code=code, spent_s=max(spent_s, 0.0), why_not=why_not)


def confinement_of(setup: ProgramSetup, readable: Sequence[str]) -> Confinement | Boxes:
    if setup.box:
        return Boxes(setup.box, setup.limits, readable)
    return Confinement(setup.level, setup.limits, readable, of_programs=True)


def main() -> None:
    """Prepares the confinement that the pool names, reports the result, and serves."""
    control = socket.socket(fileno=os.dup(0))
    first_when_memory_ends()  # rather than the trainer
    undumpable()
    adopt_orphans()
    die_with_parent()
    setup = msgspec.msgpack.decode(control.recv(LONGEST_CONTROL), type=ProgramSetup)
    try:
        readable = [path for path in imported_paths() if Path(path).name not in OURS]
        confinement = confinement_of(setup, readable)
    except OSError as error:
        control.send(msgspec.msgpack.encode(Ready(f"{type(error).__name__}: {error}"[:WORDS])))
        return
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all modules
    control.send(msgspec.msgpack.encode(Ready()))
    ProgramTemplate(control, confinement, setup.wall_s).serve()


if __name__ == "__main__":
    main()
