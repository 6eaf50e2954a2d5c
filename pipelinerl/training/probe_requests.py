"""The requests of a probe, in a separate thread, so that training continues.

Servers that pull weights are asked once they serve exactly the probed version.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread

from contracts.records import Completion
from pipelinerl.clients.completions import Asked, Prompt, Sampling, complete
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.training.membership.silent_servers import SilentServers

POLL_S = 0.2  # between two requests for a server's version
LONGEST_PAUSE = 64  # longest pause before a server that does not answer is asked again, in timeouts


@dataclass(frozen=True)
class AwaitedVersion:
    """A version of a run that servers pull, and may skip."""

    run: str
    version: int

    async def is_served(self, server: ServerControl) -> bool:
        """Waits until the server serves the version. Returns False if it serves a later one."""
        while True:
            weights = (await server.contract()).weights
            if weights.run == self.run and weights.version >= self.version:
                return weights.version == self.version
            await asyncio.sleep(POLL_S)


class ProbeRequests:
    """The requests of one probe at a time, in which each server completes the prompts."""

    def __init__(self, token: str | None, timeout_s: float, prompts: Sequence[Prompt], sampling: Sampling):
        """timeout_s: longest wait for a server, which is then asked less and less often."""
        self._token = token
        self._timeout_s = timeout_s
        self._prompts = prompts
        self._sampling = sampling
        self._silent: SilentServers[str] = SilentServers(timeout_s, LONGEST_PAUSE * timeout_s)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="probe", daemon=True)
        self._asked: dict[str, float] = {}  # server -> time of its requests
        self._answers: list[Completion] = []
        self._under_way: Future[float] | None = None  # its result is the time when the requests ended

    @property
    def servers_asked(self) -> int:
        return len(self._asked)

    @property
    def count(self) -> int:
        return len(self._asked) * len(self._prompts)

    def begin(self, servers: Iterable[str], awaited: AwaitedVersion | None = None) -> int:
        """Sends requests to the servers that are due. Returns their number.

        awaited: the version that a server must serve before it is asked; None if all serve it.
        """
        self.take()
        if not self._thread.is_alive():
            self._thread.start()
        now = time.monotonic()
        due = [url for url in servers if self._silent.is_due(url, now)]
        self._asked = {} if awaited else dict.fromkeys(due, now)
        self._answers = []
        asking = self._ask(due, self._asked, self._answers, awaited)
        self._under_way = asyncio.run_coroutine_threadsafe(asking, self._loop)
        return len(due)

    @property
    def have_ended(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def wait(self) -> None:
        """Waits until the requests have ended, at most for the timeout."""
        if self._under_way:
            wait([self._under_way])

    def take(self) -> list[Completion]:
        """Returns the answers so far, and cancels the other requests."""
        if self._under_way is None:
            return []
        ended = time.monotonic() if self._under_way.cancel() else self._under_way.result()
        self._under_way = None
        answers = list(self._answers)
        self._observe(answers, ended)
        return answers

    def close(self) -> None:
        self.take()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(_others_end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _observe(self, answers: list[Completion], ended: float) -> None:
        counts = Counter(completion.server for completion in answers)
        answered = {url for url in self._asked if counts[url] == len(self._prompts)}
        over = {url for url, asked_at in self._asked.items() if ended - asked_at >= self._timeout_s}
        silent = over - answered
        self._silent.observe(answered | silent, silent, ended)

    async def _ask(
        self,
        servers: list[str],
        asked: dict[str, float],
        answers: list[Completion],
        awaited: AwaitedVersion | None,
    ) -> float:
        """Appends the answers, and returns the time when all requests have ended.

        Failures are ignored, because the publisher notices a server that fails.
        """
        async with open_session(self._token, self._timeout_s) as session:

            async def one(url: str, prompt: Prompt) -> None:
                answers.append((await complete(session, url, Asked(prompt, self._sampling))).completion)

            async def all_of(url: str) -> None:
                if awaited and not await awaited.is_served(ServerControl(session, url)):
                    return
                if awaited:
                    asked[url] = time.monotonic()
                requests = [one(url, prompt) for prompt in self._prompts]
                await asyncio.gather(*requests, return_exceptions=True)

            await asyncio.gather(*map(all_of, servers), return_exceptions=True)
        return time.monotonic()


async def _others_end() -> None:
    """Waits until all other tasks of the loop have ended, so that cancelled ones close their connections."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
