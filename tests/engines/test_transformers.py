"""The transformers adapter: hostile requests, and its metrics; the conformance kit proves the rest of it."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.engines.scraped_updates import metrics_after_an_update
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.servers import Server, serving, wait_ready

pytestmark = pytest.mark.engines

TOKEN = "a-token"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    environment = {TOKEN_VARIABLE: TOKEN}
    with serving("inference_adapters.transformers", "--model", model, environment=environment) as server:
        wait_ready(server.url, within_s=60)
        yield server


def test_its_metrics_tell_an_update_and_a_completion(server, model):
    metrics_after_an_update(server.url, model, TOKEN)


def test_hostile_requests_harm_nobody(server, model):
    harm_nobody(server, model, TOKEN)
