"""The transformers adapter in one server: calls, metrics, hostile requests, weights and updates in flight."""

from collections.abc import Iterator

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.kept import assert_kept
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.tool_rollouts import (
    calls_and_results_are_one_sequence,
    calls_in_segments_are_read_as_a_whole,
    calls_that_are_cut_short_say_so,
)
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.servers import Server, serving, wait_ready

pytestmark = pytest.mark.engines

TOKEN = "a-token"


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    environment = {TOKEN_VARIABLE: TOKEN}
    with serving("inference_adapters.transformers", "--model", model, environment=environment) as server:
        wait_ready(server.url, within_s=60)
        yield server


def test_calls_and_results_are_one_sequence_of_sampled_tokens(server, model):
    """The tests of calls come first: those of updates send other weights."""
    calls_and_results_are_one_sequence(server.url, model, TOKEN)


def test_a_call_that_was_cut_short_says_so(server, model):
    calls_that_are_cut_short_say_so(server.url, model, TOKEN)


def test_a_call_that_comes_in_segments_is_read_as_a_whole(server, model):
    calls_in_segments_are_read_as_a_whole(server.url, model, TOKEN)


def test_weights_and_updates_in_flight(server, model):
    """The other guarantees are tried by `make soak`."""
    assert_kept(check_inference([server.url], model, token=TOKEN, only=["G1", "G2"]))


def test_its_metrics_tell_an_update_and_a_completion(server, model):
    metrics_after_an_update(server.url, model, TOKEN)


def test_hostile_requests_harm_nobody(server, model):
    harm_nobody(server, model, TOKEN)
