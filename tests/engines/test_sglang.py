"""The SGLang adapter on the real engine, in one server. The other guarantees, several workers, engines that
end and a whole run of all engines are tried by `make soak`: test_sglang_long, test_thorough."""

from collections.abc import Iterator

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.kept import assert_kept
from tests.engines.agent_sessions import agents_are_recorded
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.servers import engine_server
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.metrics import told, value
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import Server, contract

pytestmark = pytest.mark.engines

TOKEN = "a-token"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    with engine_server("sglang", model, "--served-model-name", NAME, token=TOKEN) as server:
        yield server


def test_weights_and_updates_in_flight(server, model):
    """The other guarantees are tried by `make soak`."""
    assert_kept(check_inference([server.url], model, token=TOKEN, only=["G1", "G2"]))


@pytest.mark.parametrize(("guarantee", "part"), [("G4", "scores"), ("G5", "scores"), ("G4", "recomputed")])
def test_scores_and_temperatures(server, model, guarantee, part):
    assert_kept(check_inference([server.url], model, token=TOKEN, only=[guarantee], part=part))


@pytest.mark.parametrize(
    "part", ["alternatives", "openai", "stop-strings", "end-of-sequence", "template-options"]
)
def test_answers_have_every_form(server, model, part):
    assert_kept(check_inference([server.url], model, token=TOKEN, only=["G9"], part=part))


def test_agents_are_recorded(server, model):
    agents_are_recorded(server.url, model, TOKEN)


def test_what_it_declares(server):
    declared = contract(server.url, TOKEN)
    assert set(declared["capabilities"]) == {
        "score",
        "score_top",
        "arrays",
        "as_completed",
        "staged",
        "stream",
        "tools",
        "stop_strings",
        "template_options",
        "top_logprobs",
        "openai",
        "metrics",
        "leave_group",
        "relay",
        "shared",
        "delta",
    }
    assert declared["kv_cache"] == ["keep", "recompute"]


def test_its_metrics_tell_an_update_and_a_completion_and_sglangs_own_come_after_them(server, model):
    samples = metrics_after_an_update(server.url, model, TOKEN)
    assert value(samples, "sglang:generation_tokens_total") > 0
    text = told(server.url, TOKEN)
    assert text.count("# TYPE sglang:generation_tokens_total counter") == 1
    assert text.index("contract_weight_version") < text.index("sglang:generation_tokens_total")


@pytest.fixture(scope="module")
def surface(server) -> Surface:
    return Surface(server.url, TOKEN)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)


def test_hostile_requests_harm_nobody(server, model):
    harm_nobody(server, model, TOKEN)
