"""Compares the first spans of responses with the weights in their labels. G8 calls it.

A server that processes a prompt in chunks may apply updates between chunks. With `keep`, older weights have
then computed keys and values of the first chunks, from which newer weights continue.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.kept_cache import KeptCache
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.updates_under_load import Answers, mode_of, weights_of

CHECKED = 24  # responses compared with the reference
MOST_UPDATES = 3  # most updates during one prompt; each multiplies the combinations to compare with


async def first_spans_off_by(bench: Bench, answers: Answers) -> float:
    """Returns the largest error, in nats, of the first spans of some responses."""
    kv_cache = await bench.offered("kv_cache")
    cache = KeptCache(bench.reference)
    worst = 0.0
    for answer in answers[:: max(1, len(answers) // CHECKED)]:
        version = answer.sample.spans[0][0]
        older = older_versions(version, answer.since, kv_cache) if cache.continues else ()
        prompt = answer.sample.prompt_token_ids
        where = f"{answer.server}: complete {prompt} while version {version} is published"
        worst = max(worst, first_span_off_by(bench, answer.sample, where, cache, older))
    return worst


def older_versions(version: int, since: int, kv_cache: list[str]) -> Sequence[int]:
    """Returns the versions before the first span's that may have read a part of the prompt.

    Each of them was live after the request was sent, and later updates kept the cache. since: the version
    that was live when the request was sent.
    """
    oldest = version
    while oldest > max(since, version - MOST_UPDATES) and mode_of(kv_cache, oldest) == "keep":
        oldest -= 1
    return range(oldest, version)


def first_span_off_by(
    bench: Bench, sample: Sample, where: str, cache: KeptCache, older: Sequence[int]
) -> float:
    """Returns the largest error, in nats, of the first span. Raises GuaranteeError beyond the tolerance.

    older: versions that may have read a part of the prompt before, in order.
    """
    version, start, end = sample.spans[0]
    span = range(start, end)
    weights = weights_of(bench, version)
    expected = bench.reference.logprobs(weights, sample.prompt_token_ids, sample.token_ids)
    if older and bench.distance(sample, expected, span) > bench.settings.tolerance:
        for kept in _kept(bench, sample, cache, older):
            error = bench.distance(sample, kept, span)
            if error <= bench.settings.tolerance:
                return error
    return bench.check_positions(sample, expected, where, span)


def _kept(bench: Bench, sample: Sample, cache: KeptCache, older: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yields [tokens] log-probabilities for each way to divide the prompt among these versions."""
    prompt = sample.prompt_token_ids
    ids = sample.token_ids
    last = (weights_of(bench, sample.spans[0][0]), len(prompt) + len(ids))
    before = [weights_of(bench, version) for version in older]
    # Each version's part ends where the next one begins. The last version always reads the last token of the
    # prompt.
    for ends in combinations_with_replacement(range(len(prompt)), len(before)):
        yield cache.logprobs([*zip(before, ends, strict=True), last], prompt, ids)
