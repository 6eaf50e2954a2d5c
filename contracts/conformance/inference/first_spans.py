"""Compares the first span of responses with the weights that it names. G8 does so after many updates.

A server that reads a prompt in pieces may apply an update between two of them. With `keep` the older weights
have then read the first pieces, and the new weights go on from their keys and values.
"""

from collections.abc import Iterator

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.kept_cache import KeptCache
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.updates_under_load import Answers, mode_of, weights_of

CHECKED = 24  # responses compared with the reference


async def first_spans_off_by(bench: Bench, answers: Answers) -> float:
    """Returns the largest error, in nats, of the first spans of some responses."""
    kv_cache = await bench.offered("kv_cache")
    cache = KeptCache(bench.reference)
    worst = 0.0
    for server, sample in answers[:: max(1, len(answers) // CHECKED)]:
        version = sample.spans[0][0]
        where = f"{server}: complete {sample.prompt_token_ids} while version {version} is published"
        keeps = mode_of(kv_cache, version) == "keep"
        worst = max(worst, first_span_off_by(bench, sample, where, cache if keeps else None))
    return worst


def first_span_off_by(bench: Bench, sample: Sample, where: str, cache: KeptCache | None) -> float:
    """Returns the largest error, in nats, of the first span.

    cache: computes what the version before may have read of the prompt; None if none of it was kept.

    Raises GuaranteeError beyond the tolerance.
    """
    version, start, end = sample.spans[0]
    span = range(start, end)
    prompt = sample.prompt_token_ids
    ids = sample.token_ids
    expected = bench.reference.logprobs(weights_of(bench, version), prompt, ids)
    if cache is not None and bench.distance(sample, expected, span) > bench.settings.tolerance:
        errors = [bench.distance(sample, kept, span) for kept in _kept(bench, sample, cache)]
        if min(errors, default=torch.inf) <= bench.settings.tolerance:
            return min(errors)
    return bench.check_positions(sample, expected, where, span)


def _kept(bench: Bench, sample: Sample, cache: KeptCache) -> Iterator[torch.Tensor]:
    """Yields the `[tokens]` log-probabilities by the length of prompt that older weights may have read."""
    version = sample.spans[0][0]
    if version < 2 or not cache.continues:
        return
    prompt = sample.prompt_token_ids
    ids = sample.token_ids
    new = (weights_of(bench, version), len(prompt) + len(ids))
    for read in range(1, len(prompt)):
        yield cache.logprobs([(weights_of(bench, version - 1), read), new], prompt, ids)
