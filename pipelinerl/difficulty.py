"""Attempts training problems on a running server, and lists those worth training on.

    python -m pipelinerl.difficulty --url http://127.0.0.1:8000 --out sums.jsonl model.path=MODEL [KEY=VALUE]
    python launch.py domain=subset domain.path=sums.jsonl model.path=MODEL

Keys are those of launch.py: domain, sampling, rollout and inference.concurrency count here. A problem is kept
where its share of successes is from --low to --high. The default, 0.1 to 0.8, leaves out what the model
solves nearly always or never, from which a group learns little. INTELLECT-2 (arXiv 2505.07291, offline data
filtering) has another band. The same command leaves out what can be guessed without reasoning once in eight
attempts (Kimi k1.5, arXiv 2501.12599, §2.1). Its options are
`--system 'Answer at once, without any reasoning.' --low 0 --high 0`.

A problem with an attempt that failed (a server, the verifier, time) is not judged, and not kept.
"""

import argparse
import asyncio
import itertools
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import msgspec
from hydra.errors import HydraException
from pydantic import ValidationError

from contracts.records import Rollout
from contracts.support.command_line import command_parser
from contracts.support.files import write_atomically
from contracts.support.messages import one_line
from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.components import build_client, build_domain, judge_of
from pipelinerl.config import RunConfig
from pipelinerl.domains.base import Domain, Problem, opened
from pipelinerl.domains.subset import Listed
from pipelinerl.errors import PlanError
from pipelinerl.launcher.compose import compose_config
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec

GIVE_UP_AFTER = 64  # failed attempts in a row, which the problems cannot have caused


@dataclass
class Measurement:
    """The attempts at the first training problems, the same number at each."""

    attempt: RolloutRunner
    problems: int
    attempts: int
    system: str | None  # system prompt that replaces the domain's own
    _successes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by problem
    _failed_in_a_row: int = 0

    async def run(self, concurrency: int) -> None:
        """Makes all attempts. Raises PlanError after too many failures in a row."""
        work = itertools.product(range(self.problems), range(self.attempts))
        await asyncio.gather(*(self._work_off(work) for _ in range(concurrency)))

    async def _work_off(self, work: Iterator[tuple[int, int]]) -> None:
        for index, number in work:
            problem = with_system_prompt(self.attempt.domain.train_problem(index), self.system)
            name = f"difficulty {index} {number}"
            self._note(index, await self.attempt(problem, RolloutSpec(index, name, name)))

    def _note(self, index: int, rollout: Rollout) -> None:
        if not rollout.failed:
            self._successes[index].append(rollout.metrics["success"])
        self._failed_in_a_row = self._failed_in_a_row + 1 if rollout.failed else 0
        if self._failed_in_a_row == GIVE_UP_AFTER:
            raise PlanError(f"{GIVE_UP_AFTER} attempts in a row failed, the last with {rollout.status}")

    def verdicts(self, low: float, high: float) -> Iterator[tuple[str, Listed]]:
        """Yields for each problem, in order, whether it is kept, and its line of the list."""
        for index in range(self.problems):
            problem = self.attempt.domain.train_problem(index)
            successes = self._successes[index]
            share = sum(successes) / self.attempts
            verdict = "too easy" if share > high else "too hard" if share < low else "kept"
            if len(successes) < self.attempts:
                verdict = "failed"
            yield verdict, Listed(index, problem.problem_id, problem.messages, share)


def with_system_prompt(problem: Problem, system: str | None) -> Problem:
    """Returns the problem with `system` as its system prompt, or as it is if `system` is None."""
    if system is None:
        return problem
    rest = [message for message in problem.messages if message["role"] != "system"]
    return replace(problem, messages=[{"role": "system", "content": system}, *rest])


async def measure(config: RunConfig, domain: Domain, options: argparse.Namespace) -> Measurement:
    """Returns the measurement, once all attempts are made. Raises PlanError."""
    pool = ServerPool(config.inference.requests_at_first)
    await pool.set_servers([options.url])
    async with open_session(os.environ.get(TOKEN_VARIABLE)) as session:
        await _check_ready(session, options.url)
        async with judge_of(domain, config.judging) as judge, opened(domain):
            client = build_client(config, session, pool, judge)
            attempt = RolloutRunner("difficulty", domain, client, config.rollout)
            problems = min(options.problems, domain.train_size)
            measurement = Measurement(attempt, problems, options.attempts, options.system)
            await measurement.run(pool.capacity)
    return measurement


async def _check_ready(session: aiohttp.ClientSession, url: str) -> None:
    try:
        async with session.get(f"{url}/health") as answer:
            if answer.status != 200:
                raise PlanError(f"the server at {url} is not ready: its /health answers {answer.status}")
    except aiohttp.ClientError as error:
        raise PlanError(f"no server answers at {url}: {error}") from error


def write_list(listed: list[Listed], out: Path) -> None:
    write_atomically(out, msgspec.json.Encoder().encode_lines(listed))


def main(arguments: list[str]) -> None:
    """Measures how often a model solves each problem, and writes the list."""
    options = _options(arguments)
    try:
        _check(options)
        config = compose_config(options.overrides)
        domain = build_domain(config)
        if config.inference.model is None and config.model.path is None:
            raise PlanError("model.path is null; set it to the model that the server serves")
    except (PlanError, ValidationError, HydraException, TypeError, ValueError) as error:
        plain = error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error
        sys.exit(f"difficulty: {one_line(plain)}")
    try:
        measurement = asyncio.run(measure(config, domain, options))
    except PlanError as error:
        sys.exit(f"difficulty: {error}")
    verdicts = list(measurement.verdicts(options.low, options.high))
    counts = Counter(verdict for verdict, _ in verdicts)
    numbers = ", ".join(f"{counts[label]} {label}" for label in ("kept", "too easy", "too hard", "failed"))
    print(f"{len(verdicts)} problems, {options.attempts} attempts each: {numbers}")
    if not counts["kept"]:
        sys.exit(f"difficulty: no problem is kept, so {options.out} is not written")
    write_list([listed for verdict, listed in verdicts if verdict == "kept"], options.out)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = command_parser("pipelinerl.difficulty", __doc__)
    parser.add_argument("--url", required=True, help="of the inference server")
    parser.add_argument("--out", type=Path, required=True, help="a new file, for domain=subset")
    parser.add_argument("--attempts", type=int, default=8, help="at each problem")
    parser.add_argument("--problems", type=int, default=1000, help="how many, from the first on")
    parser.add_argument("--low", type=float, default=0.1, help="least share of successes that is kept")
    parser.add_argument("--high", type=float, default=0.8, help="largest share of successes that is kept")
    parser.add_argument("--system", help="a system prompt in place of the domain's")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for launch.py")
    return parser.parse_intermixed_args(arguments)


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.low <= options.high <= 1:
        raise PlanError(f"--low {options.low} --high {options.high}: 0 <= low <= high <= 1")
    if options.attempts < 1 or options.problems < 1:
        raise PlanError("--attempts and --problems are at least 1")
    if options.out.exists():
        raise PlanError(f"{options.out} exists and is never overwritten; choose a new file")
    if not options.out.parent.is_dir():
        raise PlanError(f"{options.out.parent} is no directory")


if __name__ == "__main__":
    main(sys.argv[1:])
