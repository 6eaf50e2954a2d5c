"""The first span of a response, whose prompt an update may have cut in two."""

import pytest
import torch

from contracts.conformance.inference.bench import Bench
from contracts.conformance.inference.first_spans import first_span_off_by
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


def answered(bench: Bench, label: int, old: int, read: int) -> Sample:
    """Returns an answer of version 34, before which version `old` has read `read` tokens of the prompt."""
    prompt = bench.reference.prompt(8)
    parts = [(weights_of(bench, old), read), (weights_of(bench, 34), len(prompt) + len(IDS))]
    logprobs = KeptCache(bench.reference).logprobs(parts, prompt, IDS).tolist()
    return Sample(prompt, IDS, logprobs, [(label, 0, len(IDS))], "length", "")


@pytest.mark.parametrize("read", [0, 1, 6, 7])
def test_with_keep_older_weights_may_have_read_a_part_of_the_prompt(bench, read):
    sample = answered(bench, 34, old=33, read=read)
    assert first_span_off_by(bench, sample, "here", KeptCache(bench.reference)) < 1e-3


@pytest.mark.parametrize(
    ("label", "old", "read", "keeps"),
    [
        (34, 33, 6, False),  # recompute: nothing of the old weights stays
        (33, 33, 0, True),  # labelled one version too early
        (35, 33, 0, True),  # labelled one version too late
        (34, 32, 6, True),  # weights that were replaced before
        (34, 33, 8, True),  # the first token itself is of the old weights
    ],
)
def test_what_no_server_may_answer(bench, label, old, read, keeps):
    sample = answered(bench, label, old, read)
    with pytest.raises(GuaranteeError, match=f"labelled {label}"):
        first_span_off_by(bench, sample, "here", KeptCache(bench.reference) if keeps else None)
