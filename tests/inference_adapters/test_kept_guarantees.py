"""What the kit asks of requests, answers and stored weights, of servers that need no other environment."""

from collections.abc import Iterator

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.inference.reference import Reference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.kept import assert_kept
from tests.conformance.models import make_scripted_model
from tests.inference_adapters.servers import serving, wait_ready

TOKEN = "s3cret"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Iterator[tuple[str, Reference]]:
    """Yields the URL of a server that has a token, and its model."""
    model = make_scripted_model(tmp_path_factory.mktemp("scripted"))
    with serving("inference_adapters.scripted", environment={TOKEN_VARIABLE: TOKEN}) as server:
        wait_ready(server.url)
        yield server.url, Reference(model, trust_remote_code=True)


@pytest.mark.parametrize(
    ("code", "part"),
    [("G4", "seeds"), ("G6", None), ("G9", None), ("G10", None), ("G12", None), ("G14", "versions"),
     ("G14", "latest"), ("G14", "shared"), ("G16", None)],
)  # fmt: skip
def test_the_scripted_adapter_keeps(scripted, code, part):
    url, reference = scripted
    assert_kept(check_inference([url], reference, token=TOKEN, only=[code], part=part))


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
    [("G1", "formats"), ("G4", "seeds"), ("G7", "infinities"), ("G9", "ids"), ("G9", "alternatives"),
     ("G9", "end-of-sequence")],
)  # fmt: skip
def test_the_transformers_adapter_keeps(transformers, code, part):
    url, model = transformers
    assert_kept(check_inference([url], model, only=[code], part=part))
