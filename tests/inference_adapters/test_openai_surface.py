"""What clients of OpenAI's API get from the engines that run without another environment."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import serving, wait_ready


@pytest.fixture(scope="module", params=["scripted", "transformers"])
def surface(request, tmp_path_factory) -> Iterator[Surface]:
    model = tmp_path_factory.mktemp("model")
    options = ["--model", make_tiny_model(model)] if request.param == "transformers" else []
    with serving(f"inference_adapters.{request.param}", "--served-model-name", NAME, *options) as server:
        wait_ready(server.url)
        yield Surface(server.url)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)
