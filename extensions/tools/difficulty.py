"""Attempts training problems on a running server, and lists those of a suitable difficulty.

    python -m extensions.tools.difficulty --url http://127.0.0.1:8000 --out sums.jsonl model.path=MODEL
    python launch.py domain=subset domain.path=sums.jsonl model.path=MODEL

Keys are those of launch.py; domain, sampling, rollout and inference.concurrency are used. A problem is kept
if its share of successes is between --low and --high. The default, 0.1 to 0.8, excludes problems that the
model solves nearly always or never. A problem with a failed attempt (server, verifier, time) is not kept.
Source: INTELLECT-2, arXiv 2505.07291, offline data filtering, with another range.

To exclude problems whose answer can be guessed without reasoning (Kimi k1.5, arXiv 2501.12599, §2.1):

    --system 'Answer at once, without any reasoning.' --low 0 --high 0
"""

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from contracts.support.files import write_atomically
from extensions.tools.attempts import Attempts, attempts_parser, check_attempts, composed
from pipelinerl.domains.base import Domain, Problem
from pipelinerl.domains.subset import Listed
from pipelinerl.errors import PlanError

Successes = Mapping[int, Sequence[float]]  # problem -> success of each attempt that has not failed


def verdicts(
    domain: Domain, successes: Successes, problems: int, options: argparse.Namespace
) -> Iterator[tuple[str, Listed]]:
    """Yields the verdict on each problem, in order, and its line of the list."""
    for index in range(problems):
        problem = domain.train_problem(index)
        of_problem = successes[index]
        share = sum(of_problem) / options.attempts
        verdict = "too easy" if share > options.high else "too hard" if share < options.low else "kept"
        if len(of_problem) < options.attempts:
            verdict = "failed"
        yield verdict, Listed(index, problem.problem_id, problem.messages, share)


def with_system_prompt(problem: Problem, system: str | None) -> Problem:
    """Returns the problem with `system` as its system prompt; unchanged if `system` is None."""
    if system is None:
        return problem
    rest = [message for message in problem.messages if message["role"] != "system"]
    return replace(problem, messages=[{"role": "system", "content": system}, *rest])


def write_list(listed: list[Listed], out: Path) -> None:
    write_atomically(out, msgspec.json.Encoder().encode_lines(listed))


def measure(options: argparse.Namespace) -> list[tuple[str, Listed]]:
    """Makes all attempts. Returns the verdict on each problem. Raises PlanError."""
    config, domain = composed(options.overrides)
    problems = min(options.problems, domain.train_size)
    successes: dict[int, list[float]] = defaultdict(list)
    attempts = Attempts(
        "difficulty",
        problems,
        options.attempts,
        note=lambda index, attempt: attempt.failed or successes[index].append(attempt.success),
        prepare=partial(with_system_prompt, system=options.system),
    )
    asyncio.run(attempts.make(options.url, config, domain))
    return list(verdicts(domain, successes, problems, options))


def main(arguments: list[str]) -> None:
    """Measures the share of successes of each problem, and writes the list."""
    options = _options(arguments)
    try:
        _check(options)
        found = measure(options)
    except PlanError as error:
        sys.exit(f"difficulty: {error}")
    counts = Counter(verdict for verdict, _ in found)
    numbers = ", ".join(f"{counts[label]} {label}" for label in ("kept", "too easy", "too hard", "failed"))
    print(f"{len(found)} problems, {options.attempts} attempts each: {numbers}")
    if not counts["kept"]:
        sys.exit(f"difficulty: no problem is kept, so {options.out} is not written")
    write_list([listed for verdict, listed in found if verdict == "kept"], options.out)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = attempts_parser("extensions.tools.difficulty", __doc__, out="for domain=subset")
    parser.add_argument("--low", type=float, default=0.1, help="smallest share of successes to keep")
    parser.add_argument("--high", type=float, default=0.8, help="largest share of successes to keep")
    parser.add_argument("--system", help="system prompt that replaces the domain's")
    return parser.parse_intermixed_args(arguments)


def _check(options: argparse.Namespace) -> None:
    if not 0 <= options.low <= options.high <= 1:
        raise PlanError(f"--low {options.low} --high {options.high}: 0 <= low <= high <= 1")
    check_attempts(options)


if __name__ == "__main__":
    main(sys.argv[1:])
