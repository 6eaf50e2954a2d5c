"""Makes rollouts of training problems on a running server, for the commands `difficulty` and `shortest`."""

import argparse
import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from hydra.errors import HydraException
from pydantic import ValidationError

from contracts.records import Rollout
from contracts.support.command_line import command_parser
from contracts.support.messages import one_line
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.of_run import build_client
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.components import build_domain
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain, Problem, opened
from pipelinerl.domains.judges import judge_of
from pipelinerl.errors import PlanError
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec

GIVE_UP_AFTER = 64  # failed attempts in a row, which indicate that the server or verifier fails
Note = Callable[[int, Rollout], None]  # receives the index of a problem and an attempt at it


def attempts_parser(name: str, description: str | None, out: str) -> argparse.ArgumentParser:
    """Returns a parser with the common arguments. out: the purpose of the output file."""
    parser = command_parser(name, description)
    parser.add_argument("--url", required=True, help="URL of the inference server")
    parser.add_argument("--out", type=Path, required=True, help=f"a new file, {out}")
    parser.add_argument("--attempts", type=int, default=8, help="attempts at each problem")
    parser.add_argument("--problems", type=int, default=1000, help="number of problems, from the first on")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for launch.py")
    return parser


def check_attempts(options: argparse.Namespace) -> None:
    if options.attempts < 1 or options.problems < 1:
        raise PlanError("--attempts and --problems are at least 1")
    check_new_file(options.out)


def check_new_file(path: Path) -> None:
    """Raises PlanError if the file exists or its directory does not."""
    if path.exists():
        raise PlanError(f"{path} exists and is never overwritten; choose a new file")
    if not path.parent.is_dir():
        raise PlanError(f"{path.parent} is no directory")


def composed(overrides: Sequence[str]) -> tuple[RunConfig, Domain]:
    """Returns the configuration and its domain. Raises PlanError if an override is invalid."""
    try:
        config = compose_config(overrides)
        domain = build_domain(config)
    except (ValidationError, HydraException, TypeError, ValueError) as error:
        plain = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        raise PlanError(one_line(plain)) from error
    if config.inference.model is None and config.model.path is None:
        raise PlanError("model.path is null; set it to the model that the server serves")
    return config, domain


@dataclass
class Attempts:
    """Makes `attempts` attempts at each of the first `problems` training problems.

    prepare: changes a problem before it is attempted.
    note: called with each attempt when it has ended.
    """

    name: str
    problems: int
    attempts: int
    note: Note
    prepare: Callable[[Problem], Problem] = lambda problem: problem
    _failed_in_a_row: int = field(default=0, init=False)

    async def make(self, url: str, config: RunConfig, domain: Domain) -> None:
        """Makes all attempts. Raises PlanError if the server is not ready or too many attempts fail."""
        pool = ServerPool(config.inference.requests_at_first)
        await pool.set_servers([url])
        async with open_session(os.environ.get(TOKEN_VARIABLE)) as session:
            await _check_ready(session, url)
            async with judge_of(domain, config.judging) as judge, opened(domain):
                client = build_client(config, session, pool, domain, judge)
                runner = RolloutRunner(self.name, domain, client, config.rollout)
                work = itertools.product(range(self.problems), range(self.attempts))
                await asyncio.gather(*(self._work_off(work, runner) for _ in range(pool.capacity)))

    async def _work_off(self, work: Iterator[tuple[int, int]], runner: RolloutRunner) -> None:
        for index, number in work:
            name = f"{self.name} {index} {number}"
            problem = self.prepare(runner.domain.train_problem(index))
            self._take(index, await runner(problem, RolloutSpec(index, name, name)))

    def _take(self, index: int, rollout: Rollout) -> None:
        self._failed_in_a_row = self._failed_in_a_row + 1 if rollout.failed else 0
        if self._failed_in_a_row == GIVE_UP_AFTER:
            raise PlanError(f"{GIVE_UP_AFTER} attempts in a row failed, the last with {rollout.status}")
        self.note(index, rollout)


async def _check_ready(session: aiohttp.ClientSession, url: str) -> None:
    try:
        async with session.get(f"{url}/health") as answer:
            if answer.status != 200:
                raise PlanError(f"the server at {url} is not ready: its /health answers {answer.status}")
    except aiohttp.ClientError as error:
        raise PlanError(f"no server answers at {url}: {error}") from error
