"""How one completion ends: by a stop token, a stop string, or end-of-sequence.

Each is compared with the same completion that ran on. It is called by G9.
"""

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


async def check_stop_string(bench: Bench, server: Server, streams: bool) -> None:
    """Checks that the text ends before a stop string, and the ids with the token that completes it."""
    prompt = bench.reference.prompt(6)
    sampled = await server.complete(prompt, SHORT, temperature=0)
    free = sampled.text
    stop = free[len(free) // 2 :][:2]
    if not (stop and stop.isascii() and stop.isprintable()):  # empty, or part of a character
        return
    for stream in (False, True) if streams else (False,):
        sample = await server.complete(prompt, SHORT, stream, temperature=0, stop=[stop])
        where = f"{server}: complete {prompt} greedily with stop [{stop!r}], stream {stream}"
        expect(
            (sample.text, sample.finish_reason) == (free[: free.index(stop)], "stop"),
            (sample.text, sample.finish_reason),
            f"{free[: free.index(stop)]!r} and `stop`",
            where,
        )
        ids = _until(bench, sampled.token_ids, stop)
        expect(
            ids in (None, sample.token_ids), sample.token_ids, f"{ids}: the last completes the string", where
        )
        bench.compare(sample, bench.weights(1), where)


def _until(bench: Bench, token_ids: list[int], stop: str) -> list[int] | None:
    """Returns the ids up to the first after which their text has `stop`; None without a tokenizer."""
    tokenizer = bench.reference.tokenizer
    if tokenizer is None:
        return None
    for end in range(1, len(token_ids) + 1):
        if stop in str(tokenizer.decode(token_ids[:end], skip_special_tokens=True)):
            return token_ids[:end]
    return None


async def ending_weights(bench: Bench) -> tuple[Sample, dict[str, Any]]:
    """Returns a greedy completion, and weights under which it ends at one of its later tokens."""
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
    """Checks that the completion ends where `greedy` does, by end-of-sequence, which is among the ids."""
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
