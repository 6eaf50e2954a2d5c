"""The first span of a response, whose prompt updates may have cut in pieces."""

import pytest
import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.first_spans import first_span_off_by, older_versions
from contracts.conformance.inference.kept_cache import KeptCache
from contracts.conformance.inference.reference import Reference
from contracts.conformance.inference.samples import Sample
from contracts.conformance.inference.settings import Settings
from contracts.conformance.inference.updates_under_load import weights_of
from contracts.conformance.tiny_model import make_tiny_model
from contracts.conformance.verdicts import GuaranteeError

IDS = [13, 20, 30, 14, 15, 16]


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    reference = Reference(str(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")))
    return Bench([], reference, Settings(), torch.float32, 512)


def answered(bench: Bench, label: int, *read: tuple[int, int]) -> Sample:
    """Returns an answer of version 34. read: versions before it, each with where it ended in the prompt."""
    prompt = bench.reference.prompt(8)
    parts = [(weights_of(bench, version), end) for version, end in (*read, (34, len(prompt) + len(IDS)))]
    logprobs = KeptCache(bench.reference).logprobs(parts, prompt, IDS).tolist()
    return Sample(prompt, IDS, logprobs, [(label, 0, len(IDS))], "length", "")


@pytest.mark.parametrize(
    ("older", "read"),
    [
        ([33], []),
        ([33], [(33, 1)]),
        ([33], [(33, 7)]),
        ([32, 33], [(32, 2), (33, 5)]),
        ([32, 33], [(32, 6), (33, 7)]),
        ([32, 33], [(32, 3)]),  # both updates came between two pieces
        ([31, 32, 33], [(31, 2), (32, 3), (33, 6)]),
    ],
)
def test_with_keep_older_weights_may_have_read_a_part_of_the_prompt(bench, older, read):
    sample = answered(bench, 34, *read)
    assert first_span_off_by(bench, sample, "here", KeptCache(bench.reference), older) < 1e-3


def test_a_cache_that_does_not_continue_is_not_asked(bench, monkeypatch):
    def fails(*_: object) -> None:
        raise ValueError("the model returns no keys and values")

    sample = answered(bench, 34, (33, 6))
    cache = KeptCache(bench.reference)
    monkeypatch.setattr(cache, "logprobs", fails)
    with pytest.raises(GuaranteeError):
        first_span_off_by(bench, sample, "here", cache, [])


@pytest.mark.parametrize(
    ("label", "read", "older"),
    [
        (34, [(33, 6)], []),  # recompute: nothing of the old weights stays
        (34, [(32, 2), (33, 5)], []),
        (33, [], [32]),  # labelled one version too early
        (35, [], [34]),  # labelled one version too late
        (34, [(32, 6)], [33]),  # weights that were replaced before
        (34, [(31, 2), (33, 5)], [32, 33]),
        (34, [(33, 2), (32, 5)], [32, 33]),  # weights that came back
        (34, [(33, 8)], [33]),  # the first token itself is of the old weights
        (34, [(32, 4), (33, 8)], [32, 33]),
    ],
)
def test_what_no_server_may_answer(bench, label, read, older):
    sample = answered(bench, label, *read)
    with pytest.raises(GuaranteeError, match=f"labelled {label}"):
        first_span_off_by(bench, sample, "here", KeptCache(bench.reference), older)


@pytest.mark.parametrize(
    ("since", "kv_cache", "older"),
    [
        (34, ["keep"], []),  # sent when version 34 was live
        (33, ["keep"], [33]),
        (32, ["keep"], [32, 33]),
        (9, ["keep"], [31, 32, 33]),  # as many as are tried
        (32, ["recompute"], []),
        (32, ["keep", "recompute"], [33]),  # version 33 recomputed what 32 had read
        (32, ["recompute", "keep"], []),
    ],
)
def test_only_versions_since_the_request_whose_keys_were_kept_may_have_read_it(since, kv_cache, older):
    assert list(older_versions(34, since, kv_cache)) == older
