"""What a volunteer does: follows the run and its weights, and makes one task after the other."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from extensions.stored_weights.store.errors import StoreError
from extensions.volunteers.join.gateway_client import AwayError, GatewayClient, RefusedError
from extensions.volunteers.join.local_server import LocalServer, ServerError, WeightsError
from extensions.volunteers.join.model_copy import fetch_model
from extensions.volunteers.messages import Made, Run, Task, Weights
from pipelinerl.clients.server_control import NO_ANSWER

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
SAY_EVERY_S = 30.0
# Words of errors after which the run is asked for again:
OF_THE_RUN = {"life", "other_run", "stale", "ticket", "update_first"}
AGAIN = OF_THE_RUN | {"overloaded", "audit_failed", "slow_down", "paused"}
REFUSED = {"too_large", "bad_request"}


class PutOutError(Exception):
    """The gateway does not give this volunteer tasks any more; the message is its reason."""


class Volunteer:
    """A volunteer. make_server: returns a server that is not started, for a directory with the model.

    Adversaries of the tests override `make`. All methods are called in one event loop.
    """

    def __init__(
        self,
        gateway: GatewayClient,
        directory: Path,
        make_server: Callable[[Path, Run], LocalServer],
        room: int,
    ):
        self._gateway = gateway
        self._directory = directory
        self._make_server = make_server
        self._room = room
        self._run: Run | None = None  # None: to be asked for
        self._server: LocalServer | None = None
        self._serves: tuple = ()  # what the server was started for
        self._weights: Weights | None = None  # to sample with next
        self._task: Task | None = None  # that is open at the gateway
        self._pause_s = FIRST_PAUSE_S
        self._totals = Totals()

    async def work(self) -> None:
        """Works until it is cancelled. Raises PutOutError, ServerError, TooLargeError or ValueError."""
        try:
            while True:
                try:
                    await self._step()
                    self._pause_s = FIRST_PAUSE_S
                except RefusedError as error:
                    await self._refused(error)
                except (AwayError, StoreError, WeightsError, *NO_ANSWER) as error:
                    log.warning("%s; tried again in %.1f s", error or type(error).__name__, self._pause_s)
                    self._run = None
                    await self._pause()
        finally:
            await self._close()

    async def _close(self) -> None:
        """Gives an open task back, and ends the server."""
        if self._task is not None:
            with contextlib.suppress(AwayError, RefusedError):
                await self._gateway.give_back(self._task.task)
        if self._server is not None:
            await self._server.close()

    async def _step(self) -> None:
        """Brings the server to the newest weights, and makes a task, if there is one."""
        if self._run is None:
            run = await self._gateway.run()
            if run.weights is None:  # the trainer has not come, or has not published
                await self._pause()
                return
            self._run = run
            self._weights = run.weights
        server = await self._served(self._run)
        if server.weights != self._weights:
            await server.update(self._weights)
        granted = await self._gateway.ask(self._run.run, server.weights.version, self._room)
        self._weights = granted.weights or self._weights
        if granted.task is None:
            return
        self._task = granted.task
        made = await self.make(granted.task)
        accepted = await self._gateway.upload(granted.task.task, made)
        self._task = None
        self._totals.add(granted.task.version, accepted.accepted, made)

    async def make(self, task: Task) -> list[Made]:
        """Returns the completions of a task."""
        return await self._server.make(task)

    # --- refusals ---------------------------------------------------------------------------------

    async def _refused(self, error: RefusedError) -> None:
        """Does what the gateway's answer asks for. Raises PutOutError."""
        passes = error.status >= 500 or error.status == 422 or error.word in AGAIN | REFUSED
        if error.status == 403 or not passes:
            raise PutOutError(str(error)) from None
        self._task = None
        if error.word in OF_THE_RUN:
            self._run = None
        if error.status == 422 or error.word in REFUSED | {"paused"}:
            log.error("%s: %s", error.word, error)
        if error.word == "paused":
            self._pause_s = LONGEST_PAUSE_S
        await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s * random.uniform(0.75, 1.0))  # so that not all return at once
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    # --- the server -------------------------------------------------------------------------------

    async def _served(self, run: Run) -> LocalServer:
        """Returns the server, started and in the channel of the run."""
        needs = (run.sources, run.dtype, run.model, run.end_token_ids, run.commitments)
        if self._server is not None and (self._server.has_ended or self._serves != needs):
            why = "it has ended" if self._server.has_ended else "the run asks for something else"
            log.warning("the server on this machine is started again: %s", why)
            await self._server.close()
            self._server = None
        if self._server is None:
            server = self._make_server(await fetch_model(run, self._directory / "model"), run)
            self._server = server
            self._serves = needs
            await server.start(run.sources)
            self._check_ends(server, run)
        if self._server.run != run.run:
            await self._server.join_run(run)
        return self._server

    @staticmethod
    def _check_ends(server: LocalServer, run: Run) -> None:
        """Raises ServerError if the server ends answers at other tokens than the run."""
        ends = server.info.end_token_ids
        if ends is not None and sorted(ends) != sorted(run.end_token_ids):
            raise ServerError(
                f"{server.info.engine} ends answers at {ends}, and the run at {run.end_token_ids}: take "
                "another --engine"
            )


class Totals:
    """What was accepted. It says so now and then."""

    def __init__(self) -> None:
        self._tasks = self._completions = self._tokens = 0
        self._began = self._said_at = time.monotonic()

    def add(self, version: int, completions: int, made: list[Made]) -> None:
        self._tasks += 1
        self._completions += completions
        self._tokens += sum(len(one.token_ids) for one in made)
        now = time.monotonic()
        if self._tasks == 1 or now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            speed = self._tokens / max(1e-9, now - self._began)
            counts = f"{self._tasks} tasks, {self._completions} completions"
            log.info("version %d: %s accepted, %.0f tokens a second since the start", version, counts, speed)
