"""The process that forks and executes the programs of agents.

The pool starts `python -m extensions.agents.programs.template` with a socket as its standard input.
"""

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from contracts.support.die_with_parent import die_with_parent
from extensions.agents.programs.fence import Fence
from extensions.agents.programs.guardian import guard
from extensions.agents.programs.messages import DESCRIPTORS, RESULT, AgentSetup, StartAgent
from pipelinerl.judging.fork_server import ForkServer
from pipelinerl.judging.isolation import close_all_but, undumpable
from pipelinerl.judging.isolation.privileges import adopt_orphans
from pipelinerl.judging.worker_messages import LONGEST_CONTROL, WORDS, Ready

HTTP = 80
NOT_EXECUTED = 127  # exit status, as a shell's


class AgentTemplate(ForkServer):
    """Forks guardians, each of which executes a program and ends with it."""

    def __init__(self, control: socket.socket, setup: AgentSetup, fence: Fence):
        super().__init__(control, StartAgent, DESCRIPTORS)
        self._setup = setup
        self._fence = fence
        self._process = os.getpid()

    def run(self, request: StartAgent, descriptors: Sequence[int]) -> NoReturn:
        guard(self._process, lambda: self._execute(request, descriptors))

    def end(self, process: int) -> None:
        os.kill(process, signal.SIGTERM)  # a guardian ends what it has started

    def _execute(self, request: StartAgent, descriptors: Sequence[int]) -> NoReturn:
        try:
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            close_all_but({*range(DESCRIPTORS)})
            os.chdir(request.directory)
            self._fence.enter(request.directory, urlsplit(request.url).port or HTTP)
            os.execvpe(self._setup.command[0], self._setup.command, self._environment(request))
        except OSError as error:
            print(f"{self._setup.command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(NOT_EXECUTED)

    def _environment(self, request: StartAgent) -> dict[str, str]:
        return self._setup.environment | {
            "HOME": request.directory,
            "TMPDIR": request.directory,
            "RESULT": f"{request.directory}/{RESULT}",
            "OPENAI_BASE_URL": f"{request.url}/v1",
            "OPENAI_API_KEY": request.key,
        }


def main() -> None:
    """Prepares the confinement that the pool names, reports the result, and serves."""
    control = socket.socket(fileno=os.dup(0))
    undumpable()
    adopt_orphans()
    die_with_parent()
    setup = msgspec.msgpack.decode(control.recv(LONGEST_CONTROL), type=AgentSetup)
    try:
        fence = Fence(setup.is_fenced, setup.limits, setup.readable)
    except OSError as error:
        control.send(msgspec.msgpack.encode(Ready(f"{type(error).__name__}: {error}"[:WORDS])))
        return
    control.send(msgspec.msgpack.encode(Ready()))
    AgentTemplate(control, setup, fence).serve()


if __name__ == "__main__":
    main()
