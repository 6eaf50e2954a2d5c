"""Watches the part whose turn it is, in the process of the trial: names its faults, and limits its time."""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NoReturn

from pipelinerl.errors import PartError
from pipelinerl.errors.part_faults import definition_of, fault
from pipelinerl.launcher.checking.trial.calls import WrongError
from pipelinerl.launcher.checking.trial.named import ANY, own_in

SHORTEST_S = 1e-3  # 0 would be no limit


class Watch:
    """told: a file that the launcher reads where this process ends without an outcome: which part it was."""

    def __init__(self, told: BinaryIO, limit_s: float):
        self._told = told
        self._left_s = limit_s
        self.is_of_call = False  # whether the last part was made, and is called
        faulthandler.enable(told)  # a crash leaves the stack there
        # So does the alarm, which then ends the process. It needs neither a thread nor Python's own handlers.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, told, chain=True)

    @contextmanager
    def over(
        self,
        role: str,
        path: str,
        part: object = None,
        expected: str = ANY,
        method: str = "__call__",
        is_timed: bool = True,
    ) -> Iterator[None]:
        """Names the part in all that goes wrong in the block. Raises PartError.

        path: of the class, as configured. part: what was made of it.
        is_timed: whether the limit counts. A domain may fetch its problems, however long that takes.
        """
        self._told.seek(0)
        self._told.truncate()
        self.is_of_call = part is not None
        own = path if part is None else own_in(part)
        where = definition_of(own, method)
        self._told.write(f"{role} {path}{f' ({where})' if where else ''}\n".encode())
        began = time.monotonic()
        if is_timed:
            signal.setitimer(signal.ITIMER_REAL, max(self._left_s, SHORTEST_S))
        try:
            yield
        except WrongError as wrong:
            raise PartError(fault(own, wrong.expected, wrong.came, wrong.method, role)) from None
        except (Exception, SystemExit) as error:
            raise PartError(fault(own, expected, error, method, role)) from None
        finally:
            if is_timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._left_s -= time.monotonic() - began


def stand_alone() -> None:
    """Has what parts print go nowhere, torch start no threads, and an exit leave a traceback."""
    import torch

    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    sys.stdout = sys.stderr = open(nowhere, "w")  # noqa: SIM115 - as long as the process lives
    own = os.getpid()
    end = os._exit

    def exit_with(status: int) -> NoReturn:
        if os.getpid() != own:  # a process that the part has forked
            end(status)
        raise SystemExit(status)

    os._exit = exit_with
