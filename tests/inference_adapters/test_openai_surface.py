"""What clients of OpenAI's API get from the engines that run without another environment."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import serving, wait_ready


@pytest.fixture(scope="module", params=["scripted", "transformers"])
def surface(request, server, tmp_path_factory) -> Iterator[Surface]:
    if request.param == "scripted":
        yield Surface(server.url)
        return
    options = ["--model", make_tiny_model(tmp_path_factory.mktemp("model")), "--served-model-name", NAME]
    with serving("inference_adapters.transformers", *options) as other:
        wait_ready(other.url)
        yield Surface(other.url)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)
