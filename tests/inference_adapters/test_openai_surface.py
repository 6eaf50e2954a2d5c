"""What clients of OpenAI's API get from the engine that runs without another environment."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import serving, wait_ready


@pytest.fixture(scope="module")
def surface(tmp_path_factory) -> Iterator[Surface]:
    options = ["--model", make_tiny_model(tmp_path_factory.mktemp("model")), "--served-model-name", NAME]
    with serving("inference_adapters.transformers", *options) as server:
        wait_ready(server.url)
        yield Surface(server.url)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)
