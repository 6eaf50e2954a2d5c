"""The template process of judging's workers, and the workers that it forks.

The pool starts `python -m pipelinerl.judging.worker` with a socket as its standard input. The template
imports and creates the verifiers once, which takes seconds, and forks a worker per verdict, which takes
milliseconds. A model's text goes directly from the pool to the worker, which confines itself before it parses
the text. So a hostile text affects neither the template nor other workers.
"""

import gc
import os
import socket
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import NoReturn

import msgspec

from contracts.support.die_with_parent import die_with_parent
from pipelinerl.errors.part_faults import FaultError
from pipelinerl.judging.fork_server import ForkServer
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
    Failed,
    Judged,
    Ready,
    Setup,
    Start,
    framed,
)

Judge = Callable[[str, bytes, str], Judgement]  # (verifier's name, task, text)


class Template(ForkServer):
    """The process that forks workers. `judge` and `confinement` are those of each worker."""

    def __init__(self, control: socket.socket, judge: Judge, confinement: Confinement):
        super().__init__(control, Start, descriptors=1)
        self._judge = judge
        self._confinement = confinement

    def run(self, request: Start, descriptors: Sequence[int]) -> NoReturn:
        (channel,) = descriptors
        close_all_but({0, 1, 2, channel, *self._confinement.descriptors})
        Worker(channel, self._judge, self._confinement).run()


class Worker:
    """A process that judges texts, usually one, until the pool ends it."""

    def __init__(self, channel: int, judge: Judge, confinement: Confinement):
        self._channel = channel
        self._judge = judge
        self._confinement = confinement

    def run(self) -> NoReturn:
        """Confines the process, then answers questions."""
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
