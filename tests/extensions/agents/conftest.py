"""A real server with a tiny model, for the tests of agents."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.inference_adapters.servers import serving, wait_ready


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def url(model) -> Iterator[str]:
    with serving("inference_adapters.transformers", "--model", model) as server:
        wait_ready(server.url)
        yield server.url
