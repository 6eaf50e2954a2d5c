"""What the kit asks of requests, answers and stored weights, of servers that need no other environment."""

from collections.abc import Iterator

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.kept import assert_kept
from tests.inference_adapters.servers import serving, wait_ready


@pytest.fixture(scope="module")
def transformers(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Yields the URL of a server that reads long prompts in pieces, and its model."""
    model = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ("--model", model, "--max-batch-tokens", "64")
    with serving("inference_adapters.transformers", *options) as server:
        wait_ready(server.url)
        yield server.url, model


@pytest.mark.parametrize(
    ("code", "part"),
    [("G1", "formats"), ("G1", "lent"), ("G4", "seeds"), ("G7", "infinities"), ("G9", "ids"),
     ("G9", "alternatives"), ("G9", "end-of-sequence"), ("G19", "held"), ("G19", "update")],
)  # fmt: skip
def test_the_transformers_adapter_keeps(transformers, code, part):
    url, model = transformers
    assert_kept(check_inference([url], model, only=[code], part=part))
