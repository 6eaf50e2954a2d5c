"""The pool's handles of the template process and of the workers that the template forks."""

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from pipelinerl.judging.worker_messages import (
    HEADER_BYTES,
    LONGEST_ANSWER,
    LONGEST_CONTROL,
    READY,
    End,
    Ended,
    Ready,
    Start,
    framed,
)

IMPORT_S = 300  # longest time of the verifiers' imports
FULL_S = 0.01  # wait for a full socket
START_S = 30  # longest wait for a worker's start, or for the report of its end
COMMAND = (sys.executable, "-m", "pipelinerl.judging.worker")


class TemplateError(Exception):
    """The template cannot create the verifiers or confine workers. The message gives the reason."""


class WorkerLostError(Exception):
    """A worker or the template has ended, and the judged text did not cause it."""


class Template:
    """A process that forks, such as one that has imported the verifiers."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket):
        self._process = process
        self._control = control
        self._numbers = itertools.count()
        self._sending = asyncio.Lock()
        self._ended: dict[int, asyncio.Future[Ended]] = {}
        self._decode = msgspec.msgpack.Decoder(Ended).decode
        self.is_lost = False
        asyncio.get_running_loop().add_reader(control, self._receive)

    @classmethod
    async def started(
        cls, setup: msgspec.Struct, environment: Mapping[str, str], command: Sequence[str] = COMMAND
    ) -> "Template":
        """Returns a template that is ready with this setup. Raises TemplateError with the reason."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=theirs, env=dict(environment), start_new_session=True
            )
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(ours, msgspec.msgpack.encode(setup))
            async with asyncio.timeout(IMPORT_S):
                received = await loop.sock_recv(ours, LONGEST_CONTROL)
            ready = msgspec.msgpack.decode(received, type=Ready)
        except BaseException as error:
            await _close(process, ours)
            if isinstance(error, OSError | msgspec.MsgspecError | TimeoutError):
                raise TemplateError(
                    "the process that imports the verifiers ended, or did not start"
                ) from error
            raise
        if ready.error:
            await _close(process, ours)
            raise TemplateError(ready.error)
        return cls(process, ours)

    async def fork(
        self, request: Callable[[int], msgspec.Struct], descriptors: Sequence[int]
    ) -> tuple[int, asyncio.Future[Ended]]:
        """Asks for a process, and returns its number and its end. `request`: makes the message of a number.

        Raises WorkerLostError if the template is gone. The descriptors stay the caller's.
        """
        number = next(self._numbers)
        message = msgspec.msgpack.encode(request(number))
        async with self._sending:
            while not self._sent(message, descriptors):  # the socket holds some hundred messages
                await asyncio.sleep(FULL_S)
            self._ended[number] = asyncio.get_running_loop().create_future()
        return number, self._ended[number]

    def _sent(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Sends a message. Returns False if the socket is full. Raises WorkerLostError."""
        if self.is_lost:
            raise WorkerLostError("the template of the workers is gone")
        try:
            socket.send_fds(self._control, [message], descriptors)
        except BlockingIOError:
            return False
        except OSError as error:  # also of a socket that is closed
            self.lose()
            raise WorkerLostError("the template of the workers is gone") from error
        return True

    async def worker(self) -> "Worker":
        """Returns a new, confined worker. Raises WorkerLostError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                number, ended = await self.fork(Start, [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_ANSWER)
        worker = Worker(self, number, ended, reader, writer)
        try:
            async with asyncio.timeout(START_S):
                first = await reader.read(LONGEST_ANSWER)
            if first != READY:
                words = first.decode(errors="replace") or "it ended"
                raise WorkerLostError(f"a worker was not confined: {words}")
        except TimeoutError as error:
            self.lose()
            raise WorkerLostError(f"no worker was started within {START_S} s") from error
        except BaseException:
            worker.end()
            raise
        return worker

    def end(self, number: int) -> None:
        """Asks the template to kill a worker that has not ended."""
        if number in self._ended and not self.is_lost:
            with suppress(WorkerLostError):
                if not self._sent(msgspec.msgpack.encode(End(number))):
                    asyncio.get_running_loop().call_later(FULL_S, self.end, number)

    def lose(self) -> None:
        """Kills the template. Its workers then end, because their parent has."""
        if self.is_lost:
            return
        self.is_lost = True
        asyncio.get_running_loop().remove_reader(self._control)
        _kill(self._process)
        for ended in self._ended.values():
            ended.set_exception(WorkerLostError("the template of the workers is gone"))
            ended.exception()  # if nobody waits for the future, asyncio would log its exception
        self._ended.clear()

    async def close(self) -> None:
        self.lose()
        await _close(self._process, self._control)

    def _receive(self) -> None:
        try:
            message = self._control.recv(LONGEST_CONTROL)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.lose()
            return
        ended = self._decode(message)
        self._ended.pop(ended.worker).set_result(ended)


class Worker:
    """The handle of a confined process that answers questions. `asked` counts them."""

    def __init__(
        self,
        template: Template,
        number: int,
        ended: asyncio.Future[Ended],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self._template = template
        self._number = number
        self.asked = 0
        self._ended = ended
        self._reader = reader
        self._writer = writer

    async def ask(self, question: bytes) -> bytes | None:
        """Returns the worker's frame, b"" if the frame is too long, or None if the worker has ended."""
        self.asked += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            self._writer.write(framed(question))
            await self._writer.drain()
            length = int.from_bytes(await self._reader.readexactly(HEADER_BYTES))
            return await self._reader.readexactly(length) if length <= LONGEST_ANSWER else b""
        return None

    async def ended(self) -> Ended:
        """Waits for the worker's end. Raises WorkerLostError if the template does not report it."""
        try:
            async with asyncio.timeout(START_S):
                return await asyncio.shield(self._ended)
        except TimeoutError as error:
            self._template.lose()
            raise WorkerLostError("the template of the workers does not answer") from error

    @property
    def is_lost(self) -> bool:
        return self._ended.done()

    def end(self) -> None:
        """Closes the channel, and asks the template to kill the process."""
        self._writer.close()
        self._template.end(self._number)


async def _close(process: asyncio.subprocess.Process, control: socket.socket) -> None:
    control.close()
    _kill(process)
    await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kills the process. Its own `kill` would reap one that has ended, before asyncio's thread does."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
