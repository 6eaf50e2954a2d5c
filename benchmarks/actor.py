"""What a rollout costs in CPU time: the actor's side, from request to record, and building the answer.

python -m benchmarks.actor [--runs 7] [--seconds 2]

The client is the run's own: pool, attempt, HTTP session, the checked answer, the encoded record. A process
that answers from memory stands for the servers, and a domain that judges nothing for the domain. Of every
run the CPU seconds of this process count, so other processes do not disturb it. The variants take turns.
"""

import asyncio
import statistics
import time
from contextlib import ExitStack
from itertools import product
from typing import NamedTuple

from benchmarks.arguments import positive_int, positive_seconds
from benchmarks.canned_server import canned, deltas, response
from contracts.records import encode
from contracts.support.command_line import command_parser
from pipelinerl.clients.completions import Sampling
from pipelinerl.clients.http_session import open_session
from pipelinerl.clients.llm_client import LLMClient
from pipelinerl.clients.server_forms import ServerForms
from pipelinerl.clients.server_pool import ServerPool
from pipelinerl.config import RolloutConfig
from pipelinerl.domains.base import Attempt, ChatClient, Domain, Problem
from pipelinerl.rollouts.runner import RolloutRunner, RolloutSpec

LENGTHS = (16, 1024)  # tokens of a response
AT_ONCE = 64  # rollouts in flight
WARM_UP = 1  # runs that do not count


class Variant(NamedTuple):
    side: str  # actor or server
    tokens: int  # of a response
    arrays: bool  # whether responses have arrays; otherwise lists


class OneTurn(Domain):
    """A domain that makes one request per rollout and gives every response the same reward."""

    name = "one turn"
    train_size = 1
    heldout_size = 1

    def train_problem(self, index: int) -> Problem:
        return Problem("0", [{"role": "user", "content": "What is 2 + 3?"}])

    heldout_problem = train_problem

    async def rollout(self, client: ChatClient, problem: Problem) -> Attempt:
        answer = await client.chat(problem.messages)
        return Attempt([answer.completion], reward=1.0, success=True)


async def rollouts_a_second(url: str, tokens: int, arrays: bool, seconds: float) -> float:
    """Returns the rollouts per CPU second of this process, measured over about `seconds`."""
    pool = ServerPool(AT_ONCE)
    await pool.set_servers([url])
    made = 0
    async with open_session(None) as session:
        sampling = Sampling("canned", 1.0, tokens, seed=1)
        client = LLMClient(session, pool, sampling, forms=ServerForms(session) if arrays else None)
        domain = OneTurn()
        runner = RolloutRunner("run", domain, client, RolloutConfig(timeout_s=60.0), token_fields={})
        problem = domain.train_problem(0)

        async def place() -> None:
            nonlocal made
            while time.process_time() < end:
                rollout = await runner(problem, RolloutSpec(0, f"{made}", f"{made}"))
                assert rollout.sampled_tokens == tokens, rollout.status
                encode(rollout)
                made += 1

        await runner(problem, RolloutSpec(0, "first", "first"))  # it asks the server for its features
        began = time.process_time()
        end = began + seconds
        await asyncio.gather(*(place() for _ in range(AT_ONCE)))
        return made / (time.process_time() - began)


def answers_a_second(tokens: int, arrays: bool, seconds: float) -> float:
    """Returns the responses that a server builds per CPU second, without HTTP and without an engine."""
    parts = deltas(tokens)
    made = 0
    began = time.process_time()
    while time.process_time() < began + seconds:
        response(parts, arrays)
        made += 1
    return made / (time.process_time() - began)


def main() -> None:
    parser = command_parser("benchmarks.actor", __doc__)
    parser.add_argument("--runs", type=positive_int, default=7)
    parser.add_argument("--seconds", type=positive_seconds, default=2.0, help="CPU seconds of a run")
    options = parser.parse_args()
    variants = [Variant(*each) for each in product(("actor", "server"), LENGTHS, (False, True))]
    found: dict[Variant, list[float]] = {variant: [] for variant in variants}
    with ExitStack() as servers:
        urls = {tokens: servers.enter_context(canned(tokens)) for tokens in LENGTHS}
        for number in range(WARM_UP + options.runs):
            for variant in variants:
                rate = measured(variant, urls[variant.tokens], options.seconds)
                if number >= WARM_UP:
                    found[variant].append(rate)
    print_table(found)


def measured(variant: Variant, url: str, seconds: float) -> float:
    """Returns the responses per CPU second; `url` is the canned server's."""
    if variant.side == "actor":
        return asyncio.run(rollouts_a_second(url, variant.tokens, variant.arrays, seconds))
    return answers_a_second(variant.tokens, variant.arrays, seconds)


def print_table(found: dict[Variant, list[float]]) -> None:
    print("| side | tokens | answers per CPU second | thousand tokens per CPU second | µs a token |")
    print("|---|---|---|---|---|")
    for variant, rates in found.items():
        tokens = variant.tokens
        columns = [
            _range(rates, ".0f"),
            _range([rate * tokens / 1000 for rate in rates], ".0f"),
            _range([1e6 / (rate * tokens) for rate in rates], ".2f"),
        ]
        form = "arrays" if variant.arrays else "lists"
        print(f"| {variant.side} | {tokens} in {form} | {' | '.join(columns)} |")


def _range(values: list[float], form: str) -> str:
    """Returns the median, and the lowest and the highest value."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
