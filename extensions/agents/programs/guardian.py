"""The process above each program, which ends all its descendants with it."""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.judging.isolation import close_all_but
from pipelinerl.judging.isolation.privileges import adopt_orphans

SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
ENDED = 128 + signal.SIGKILL  # status of a program that was ended
LOOK_S = 0.05


def guard(parent: int, execute: Callable[[], NoReturn]) -> NoReturn:
    """Forks a program, waits for its end or for SIGTERM, and ends with its status, or with ENDED.

    The end of the process `parent` counts as SIGTERM.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    adopt_orphans()
    os.setsid()
    die_with_parent(signal.SIGTERM)
    program = os.fork()
    if not program:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        execute()
    close_all_but(set())
    code = ENDED
    while os.getppid() == parent:
        if signal.sigwait(SIGNALS) == signal.SIGTERM:
            break
        if (status := reaped(program)) is not None:
            code = status
            break
    end_descendants()
    os._exit(code)


def reaped(program: int) -> int | None:
    """Reaps ended children. Returns the program's exit status if it is among them; 128 + n after signal n."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1])
                found = code if code >= 0 else 128 - code
    return found


def end_descendants() -> None:
    """Ends all descendants of this process. They are stopped first, so that none starts another one."""
    while True:
        stopped: set[int] = set()
        while new := descendants(os.getpid()) - stopped:
            signal_all(new, signal.SIGSTOP)
            stopped |= new
        if not stopped:
            return
        signal_all(stopped, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_S)
        reaped(0)


def signal_all(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def descendants(process: int) -> set[int]:
    found: set[int] = set()
    new = [process]
    while new:
        new = [child for parent in new for child in children(parent) if child not in found]
        found |= {*new}
    return found


def children(process: int) -> list[int]:
    """Returns the children of all threads of a process, or none if it has ended."""
    found = []
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found
