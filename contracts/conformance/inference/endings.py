"""Checks completions that end by a stop token or by end-of-sequence. G9 calls it."""

from typing import Any

from contracts.conformance.inference.bench import SHORT, Bench
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.server import Server
from contracts.conformance.verdicts import GuaranteeError

Endings = dict[int, Sample]  # end-of-sequence -> a greedy completion whose last token it replaces
MOST_ENDS = 8  # end-of-sequence ids that are tried


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


async def ends_to_try(bench: Bench) -> list[int]:
    """Returns the ids at which servers may end, and say so: the model's own, and those that they tell."""
    told = [(await server.contract()).end_token_ids for server in bench.servers]
    every = dict.fromkeys([*bench.reference.ends, *(end for ends in told for end in ends or ())])
    known = range(bench.reference.model.get_input_embeddings().weight.shape[0])
    return [end for end in every if end in known][:MOST_ENDS]


async def ending_weights(bench: Bench, ends: list[int]) -> tuple[Endings, dict[str, Any]]:
    """Returns greedy completions, and weights under which each of `ends` replaces the last token of its own.

    There is one for the first of `ends`. For others there may be none.
    """
    endings: Endings = {}
    exchanged = {*ends}
    kept: set[int] = set()
    for seed in range(100):
        prompt = bench.reference.prompt(6, seed=seed)
        ids = (await bench.servers[0].complete(prompt, SHORT, temperature=0)).token_ids
        fresh = [i for i in range(2, len(ids)) if ids[i] not in {*prompt, *ids[:i], *kept, *exchanged}]
        if not fresh or exchanged & {*prompt, *ids[: fresh[0]]}:
            continue
        end = ends[len(endings)]
        endings[end] = Sample(prompt, ids[: fresh[0] + 1], [], [], "stop", "")
        kept |= {*prompt, *ids[: fresh[0]]}
        exchanged.add(ids[fresh[0]])
        if len(endings) == len(ends):
            break
    if not endings:
        raise GuaranteeError(
            "100 greedy completions repeat their prompts", "a model that says something", "look at them"
        )
    pairs = {end: greedy.token_ids[-1] for end, greedy in endings.items()}
    return endings, bench.reference.exchanged(bench.weights(1), pairs)


async def check_told_ends(server: Server, endings: Endings) -> None:
    """Checks that a server that tells its `end_token_ids` ends at them, and at no other of `endings`."""
    told = (await server.contract()).end_token_ids
    if told is None:
        return
    for end, greedy in endings.items():
        sample = await server.complete(greedy.prompt_token_ids, SHORT, temperature=0)
        ended = (sample.token_ids, sample.finish_reason) == ([*greedy.token_ids[:-1], end], "stop")
        expect(
            ended == (end in told),
            f"{sample.token_ids} and {sample.finish_reason!r}; end_token_ids of /contract are {told}",
            f"{'an end' if end in told else 'no end'} at {end}: the told ids are those that end a completion",
            f"{server}: publish weights that sample {end}, complete {greedy.prompt_token_ids} greedily",
        )


async def check_end_of_sequence(
    bench: Bench, server: Server, endings: Endings, weights: dict[str, Any]
) -> None:
    """Checks that a completion ends like its ending, with end-of-sequence as its last id."""
    end = bench.reference.ends[0]
    greedy = endings[end]
    expected = [*greedy.token_ids[:-1], end]
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
