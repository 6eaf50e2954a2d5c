"""Finds the user's components in a configuration, and describes the faults of the one that is being tried."""

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO, NoReturn

from pipelinerl.config import Component
from pipelinerl.errors import PartError
from pipelinerl.errors.part_faults import SHIPPED, definition_of, describe_fault

ANY = "a part that can be made and called"
SHORTEST_S = 1e-3  # because 0 disables the timer


class WrongError(Exception):
    """A call of a component returned `came` instead of `expected`. `method`: the called method."""

    def __init__(self, expected: str, came: object, method: str = "__call__"):
        super().__init__(expected)
        self.expected = expected
        self.came = came
        self.method = method


def expect(holds: object, expected: str, came: object, method: str = "__call__") -> None:
    """Raises WrongError unless `holds` is true."""
    if not holds:
        raise WrongError(expected, came, method)


def has_user_component(value: object) -> bool:
    """Returns True if a class path in the configured value, at any depth, is not one that ships."""
    match value:
        case Component():
            return has_user_component(value.model_dump(by_alias=True))
        case Mapping():
            target = value.get("_target_")
            is_outside = isinstance(target, str) and target.partition(".")[0] not in SHIPPED
            return is_outside or any(map(has_user_component, value.values()))
        case list() | tuple():
            return any(map(has_user_component, value))
    return False


def user_component_in(component: object) -> object:
    """Returns the component, or the user's component inside one that ships."""
    if _is_users(component):
        return component
    inside = vars(component).values() if hasattr(component, "__dict__") else ()
    flat = [one for value in inside for one in (value if isinstance(value, list | tuple) else [value])]
    return next((one for one in flat if callable(one) and _is_users(one)), component)


def _is_users(component: object) -> bool:
    return type(component).__module__.partition(".")[0] not in (*SHIPPED, "builtins")


class Watch:
    """Describes faults of components, and limits the time of the trial.

    report: file that names the current component, for the launcher if the component ends this process.
    """

    def __init__(self, report: BinaryIO, limit_s: float):
        self._report = report
        self._left_s = limit_s
        self.is_of_call = False  # whether the last component was called, not made
        faulthandler.enable(report)  # writes the stack after a crash
        # The alarm also writes the stack, then ends the process. It needs no thread and no Python handler.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, report, chain=True)

    @contextmanager
    def over(
        self,
        role: str,
        path: str,
        component: object = None,
        expected: str = ANY,
        method: str = "__call__",
        is_timed: bool = True,
    ) -> Iterator[None]:
        """Raises PartError for an error in the block.

        path: the class path. component: the object, if it was made.
        is_timed: False for a domain, which may take long to fetch its problems.
        """
        self._report.seek(0)
        self._report.truncate()
        self.is_of_call = component is not None
        own = path if component is None else user_component_in(component)
        where = definition_of(own, method)
        self._report.write(f"{role} {path}{f' ({where})' if where else ''}\n".encode())
        began = time.monotonic()
        if is_timed:
            signal.setitimer(signal.ITIMER_REAL, max(self._left_s, SHORTEST_S))
        try:
            yield
        except WrongError as wrong:
            fault = describe_fault(own, wrong.expected, wrong.came, wrong.method, role)
            raise PartError(fault) from None
        except (Exception, SystemExit) as error:
            raise PartError(describe_fault(own, expected, error, method, role)) from None
        finally:
            if is_timed:
                signal.setitimer(signal.ITIMER_REAL, 0)
                self._left_s -= time.monotonic() - began


def isolate_process() -> None:
    """Discards output, limits torch to one thread, and makes os._exit raise SystemExit with a traceback."""
    import torch

    torch.set_num_threads(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    sys.stdout = sys.stderr = open(nowhere, "w")  # noqa: SIM115 - stays open
    own = os.getpid()
    end = os._exit

    def exit_with(status: int) -> NoReturn:
        if os.getpid() != own:  # a process that the component has forked
            end(status)
        raise SystemExit(status)

    os._exit = exit_with
