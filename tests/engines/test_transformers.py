"""The transformers adapter in one server: calls, metrics, hostile requests."""

from collections.abc import Iterator

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.engines.agent_sessions import agents_are_recorded
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.servers import engine_server
from tests.engines.tool_rollouts import (
    calls_and_results_are_one_sequence,
    calls_in_segments_are_read_as_a_whole,
    calls_that_are_cut_short_say_so,
)
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.servers import Server
from tests.tool_model import make_tool_model

pytestmark = pytest.mark.engines

TOKEN = "a-token"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    with engine_server("transformers", model, token=TOKEN) as server:
        yield server


def test_calls_and_results_are_one_sequence_of_sampled_tokens(tmp_path):
    model = make_tool_model(tmp_path, ["hermes"])
    with engine_server("transformers", model, token=TOKEN) as server:
        calls_and_results_are_one_sequence(server.url, model, TOKEN)
        calls_that_are_cut_short_say_so(server.url, model, TOKEN)
        calls_in_segments_are_read_as_a_whole(server.url, model, TOKEN)


def test_its_metrics_tell_an_update_and_a_completion(server, model):
    metrics_after_an_update(server.url, model, TOKEN)


def test_agents_are_recorded(server, model):
    agents_are_recorded(server.url, model, TOKEN)


def test_hostile_requests_harm_nobody(server, model):
    harm_nobody(server, model, TOKEN)
