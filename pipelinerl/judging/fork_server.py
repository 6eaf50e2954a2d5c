"""The process that forks a confined process for each request of a pool, and reports how it ended."""

import abc
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from pipelinerl.judging.worker_messages import LONGEST_CONTROL, LOST, End, Ended


class ForkServer(abc.ABC):
    """Forks on the requests of `control`, and reaps.

    request: the type of a request; its field `worker` is the pool's number of the process.
    descriptors: number of descriptors that come with each request.
    look_s: longest time between two calls of `look` while processes run; None = no calls.
    """

    def __init__(
        self,
        control: socket.socket,
        request: type[msgspec.Struct],
        descriptors: int,
        look_s: float | None = None,
    ):
        self._control = control
        self._descriptors = descriptors
        self._look_s = look_s
        self.began: dict[int, float] = {}  # monotonic time of each process's start
        self._numbers: dict[int, int] = {}  # process id -> the pool's number of it
        self._decode = msgspec.msgpack.Decoder(request | End).decode

    @abc.abstractmethod
    def run(self, request: Any, descriptors: Sequence[int]) -> NoReturn:
        """Does the work of the forked process, which has the descriptors of this one."""

    def look(self) -> None:
        """Looks at the processes, for example at their times."""
        raise NotImplementedError

    def serve(self) -> None:
        """Serves until the pool closes the control socket."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(-LOST, signal.SIG_DFL)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select(
                [self._control, woken], [], [], self._look_s if self.began else None
            )
            if woken in readable:
                os.read(woken, 4096)
                self._reap()
            if self._control in readable and not self._obey():
                return
            if self._look_s is not None:
                self.look()

    def _obey(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_CONTROL, self._descriptors)
        except ConnectionResetError:
            return False
        if not message:
            return False
        request = self._decode(message)
        if isinstance(request, End):
            self._end(request.worker)
        else:
            self._start(request, descriptors)
        return True

    def _start(self, request: Any, descriptors: Sequence[int]) -> None:
        try:
            process = os.fork()
        except OSError:  # the machine has no processes or no memory left
            process = None
            self._send(Ended(request.worker, LOST, 0.0, 0))
        if process == 0:
            self._run(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if process:
            self._numbers[process] = request.worker
            self.began[process] = time.monotonic()

    def _run(self, request: Any, descriptors: Sequence[int]) -> NoReturn:
        """Runs the forked process. It is lost if it cannot begin, which is no fault of a text."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.run(request, descriptors)
        finally:
            try:
                os.kill(os.getpid(), -LOST)
            finally:
                os._exit(1)

    def _send(self, ended: Ended) -> None:
        self._control.send(msgspec.msgpack.encode(ended))

    def _end(self, worker: int) -> None:
        for process, number in self._numbers.items():
            if number == worker:
                self.end(process)

    def end(self, process: int) -> None:
        """Ends a process."""
        os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        """Reaps ended children, and kills adopted processes, which ended ones had started."""
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                process, status, used = ended
                if process in self._numbers:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process, signal.SIGKILL)
                    report = self.report(process, self._numbers.pop(process), status, used)
                    del self.began[process]
                    self._send(report)
                for stray in self._strays():
                    os.kill(stray, signal.SIGKILL)

    def _strays(self) -> set[int]:
        """Returns the adopted children, or none if the kernel does not list children."""
        with suppress(OSError), open("/proc/thread-self/children") as children:
            return {int(child) for child in children.read().split()} - self._numbers.keys()
        return set()

    def report(self, process: int, worker: int, status: int, used: resource.struct_rusage) -> Ended:
        """Returns the report of an ended process."""
        code = os.waitstatus_to_exitcode(status)
        return Ended(worker, code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
