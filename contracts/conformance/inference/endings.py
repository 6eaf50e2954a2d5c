"""Checks completions that end by a stop token or by end-of-sequence. G9 calls it."""

from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError


def expect(holds: bool, measured: object, expected: str, reproduce: str) -> None:
    if not holds:
        raise GuaranteeError(str(measured)[:400], expected, reproduce)


async def check_stop_token(bench: Bench, server: Server) -> None:
    prompt = bench.reference.prompt(6)
    free = await server.complete(prompt, SHORT, temperature=0)
    stop = free.token_ids[len(free.token_ids) // 2]
    first = free.token_ids.index(stop)
    sample = await server.complete(prompt, SHORT, temperature=0, stop_token_ids=[stop])
    expect(
        (sample.token_ids, sample.finish_reason) == (free.token_ids[: first + 1], "stop"),
        (sample.token_ids, sample.finish_reason),
        f"{free.token_ids[: first + 1]} and `stop`: the token that stops is sampled too",
        f"{server}: complete {prompt} greedily with stop_token_ids [{stop}]",
    )


async def ending_weights(bench: Bench) -> tuple[Sample, dict[str, Any]]:
    """Returns a greedy completion, and weights under which end-of-sequence replaces its last token."""
    for seed in range(100):
        prompt = bench.reference.prompt(6, seed=seed)
        sample = await bench.servers[0].complete(prompt, SHORT, temperature=0)
        fresh = [i for i in range(2, SHORT) if sample.token_ids[i] not in prompt + sample.token_ids[:i]]
        if fresh:
            short = Sample(prompt, sample.token_ids[: fresh[0] + 1], [], [], "stop", "")
            return short, bench.reference.ending_with(bench.weights(1), short.token_ids[-1])
    raise GuaranteeError(
        "100 greedy completions repeat their prompts", "a model that says something", "look at them"
    )


async def check_end_of_sequence(
    bench: Bench, server: Server, greedy: Sample, weights: dict[str, Any]
) -> None:
    """Checks that the completion ends like `greedy`, with end-of-sequence as its last id."""
    expected = greedy.token_ids[:-1] + bench.reference.ends[:1]
    sample = await server.complete(greedy.prompt_token_ids, SHORT, temperature=0)
    ending = f"weights that end {greedy.prompt_token_ids} after {len(expected)} tokens"
    where = f"{server}: publish {ending}, complete it greedily"
    expect(
        (sample.token_ids, sample.finish_reason) == (expected, "stop"),
        (sample.token_ids, sample.finish_reason),
        f"{expected} and `stop`: end-of-sequence is among the ids",
        where,
    )
    bench.compare(sample, weights, where)
