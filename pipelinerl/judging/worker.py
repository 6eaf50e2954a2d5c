"""The template process of judging's workers, and the workers that it forks.

The pool starts `python -m pipelinerl.judging.worker` with a socket as its standard input. The template
imports and creates the verifiers once, which takes seconds, and forks a worker per verdict, which takes
milliseconds. A model's text goes directly from the pool to the worker, which confines itself before it parses
the text. So a hostile text affects neither the template nor other workers.
"""

import gc
import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pkgutil import resolve_name

import msgspec

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.errors.part_faults import FaultError
from pipelinerl.judging.isolation import Confinement, close_all_but, imported_paths, undumpable
from pipelinerl.judging.isolation.privileges import adopt_orphans, first_when_memory_ends
from pipelinerl.judging.wire import Judgement
from pipelinerl.judging.worker_messages import (
    HEADER_BYTES,
    LONGEST_ANSWER,
    LONGEST_CONTROL,
    READY,
    WORDS,
    Asked,
    End,
    Ended,
    Failed,
    Judged,
    Ready,
    Setup,
    Start,
    framed,
)

Judge = Callable[[str, bytes, str], Judgement]  # (verifier's name, task, text)


class Template:
    """The process that forks workers on the pool's requests, and reaps them."""

    def __init__(self, control: socket.socket, judge: Judge, confinement: Confinement):
        self._control = control
        self._judge = judge
        self._confinement = confinement
        self._workers: dict[int, int] = {}  # process id -> the pool's number of the worker
        self._decode = msgspec.msgpack.Decoder(Start | End).decode

    def serve(self) -> None:
        """Serves until the pool closes the control socket."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            readable, _, _ = select.select([self._control, woken], [], [])
            if woken in readable:
                os.read(woken, 4096)
                self._reap()
            if self._control in readable and not self._obey():
                return

    def _obey(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_CONTROL, 1)
        except ConnectionResetError:
            return False
        if not message:
            return False
        request = self._decode(message)
        if isinstance(request, Start):
            self._start(request.worker, descriptors[0])
        else:
            self._end(request.worker)
        return True

    def _start(self, worker: int, channel: int) -> None:
        process = os.fork()
        if not process:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                close_all_but({0, 1, 2, channel, *self._confinement.descriptors})
                Worker(channel, self._judge, self._confinement).run()
            finally:
                os._exit(1)
        os.close(channel)
        self._workers[process] = worker

    def _end(self, worker: int) -> None:
        for process, number in self._workers.items():
            if number == worker:
                os.kill(process, signal.SIGKILL)

    def _reap(self) -> None:
        """Reaps ended children, and kills adopted processes, which ended workers had started."""
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                process, status, used = ended
                if process in self._workers:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process, signal.SIGKILL)
                    self._report(self._workers.pop(process), status, used)
                for stray in self._strays():
                    os.kill(stray, signal.SIGKILL)

    def _strays(self) -> set[int]:
        """Returns the adopted children, or none if the kernel does not list children."""
        with suppress(OSError), open("/proc/thread-self/children") as children:
            return {int(child) for child in children.read().split()} - self._workers.keys()
        return set()

    def _report(self, worker: int, status: int, used: resource.struct_rusage) -> None:
        code = os.waitstatus_to_exitcode(status)
        ended = Ended(worker, code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10)
        self._control.send(msgspec.msgpack.encode(ended))


class Worker:
    """A process that judges texts, usually one, until the pool ends it."""

    def __init__(self, channel: int, judge: Judge, confinement: Confinement):
        self._channel = channel
        self._judge = judge
        self._confinement = confinement

    def run(self) -> None:
        """Confines the process, then answers questions. Does not return."""
        try:
            self._confinement.enter()
        except (OSError, ValueError) as error:
            os.write(self._channel, str(error)[:WORDS].encode())
            os._exit(1)
        os.write(self._channel, READY)
        while True:
            asked = self._read(int.from_bytes(self._read(HEADER_BYTES)))
            frame = _encoded(self._answer(asked))
            if len(frame) > LONGEST_ANSWER:
                frame = msgspec.msgpack.encode(Failed("output", "the judgement is too long"))
            self._write(framed(frame))

    def _answer(self, asked: bytes) -> Judged | Failed:
        try:
            question = msgspec.msgpack.decode(asked, type=Asked)
            return Judged(self._judge(question.verifier, question.task, question.text))
        except (MemoryError, RecursionError):
            return Failed("memory")
        except BlockingIOError as error:  # EAGAIN: the limit on processes and threads is exceeded
            return Failed("processes", str(error)[:WORDS])
        except FaultError as error:
            return Failed("error", str(error)[:WORDS])
        except BaseException as error:
            return Failed("error", f"{type(error).__name__}: {error}"[:WORDS])

    def _read(self, length: int) -> bytes:
        """Returns the next `length` bytes. Ends the process if the pool has closed the channel."""
        data = bytearray()
        while len(data) < length:
            part = os.read(self._channel, length - len(data))
            if not part:
                os._exit(0)
            data += part
        return bytes(data)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._channel, data) :]


def _encoded(answer: Judged | Failed) -> bytes:
    """Returns the encoded answer, or an encoded failure if the verifier returned no valid judgement."""
    try:
        frame = msgspec.msgpack.encode(answer)
        msgspec.msgpack.decode(frame, type=Judged | Failed)
    except (TypeError, ValueError) as error:
        return msgspec.msgpack.encode(Failed("error", f"the verifier returned no Judgement: {error}"[:WORDS]))
    return frame


def main() -> None:
    """Creates the judge that the pool names, reports the result, and serves."""
    control = socket.socket(fileno=os.dup(0))
    first_when_memory_ends()  # rather than the trainer; `undumpable` ends the access to /proc/self
    undumpable()
    adopt_orphans()
    die_with_parent()
    setup = msgspec.msgpack.decode(control.recv(LONGEST_CONTROL), type=Setup)
    try:
        judge = resolve_name(setup.maker)(**setup.options)
        readable = [*imported_paths(), *setup.readable]
        confinement = Confinement(setup.level, setup.limits, readable)
    except Exception as error:
        control.send(msgspec.msgpack.encode(Ready(f"{type(error).__name__}: {error}"[:WORDS])))
        return
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all imported modules
    control.send(msgspec.msgpack.encode(Ready()))
    Template(control, judge, confinement).serve()


if __name__ == "__main__":
    main()
