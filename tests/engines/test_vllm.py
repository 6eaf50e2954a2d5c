"""The vLLM adapter on the real engine, in one server. The other guarantees, several servers, tensor
parallelism, calls and whole runs are tried by `make soak`: test_vllm_long, test_thorough."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import vllm_servers
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.kept import assert_kept
from tests.engines.agent_sessions import agents_are_recorded
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.servers import engine_server
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.metrics import told, value
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import Server as Started
from tests.inference_adapters.servers import contract

pytestmark = pytest.mark.engines

TOKEN = "a-token"
TOOLS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
NAMES = ["--served-model-name", NAME]
SMALL_BLOCKS = ["--block-size", "32"]  # a prompt of the kit's fills several: they could be found again


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def started(model) -> Iterator[Started]:
    with engine_server("vllm", model, *TOOLS, *SMALL_BLOCKS, *NAMES, token=TOKEN) as server:
        yield server


@pytest.fixture(scope="module")
def server(started) -> str:
    return started.url


def test_weights_and_updates_in_flight(server, model):
    """The other guarantees are tried by `make soak`."""
    assert_kept(check_inference([server], model, token=TOKEN, only=["G1", "G2"]))


@pytest.mark.parametrize(
    ("guarantee", "part"),
    [
        ("G4", "scores"),
        ("G5", "scores"),
        ("G4", "recomputed"),
        ("G17", "rule"),
        ("G17", "update"),
        ("G18", "states"),
        ("G18", "update"),
        ("G18", "refusals"),
    ],
)
def test_scores_temperatures_and_keys(server, model, guarantee, part):
    assert_kept(check_inference([server], model, token=TOKEN, only=[guarantee], part=part))


@pytest.mark.parametrize(
    "part", ["alternatives", "openai", "stop-strings", "end-of-sequence", "template-options"]
)
def test_answers_have_every_form(server, model, part):
    assert_kept(check_inference([server], model, token=TOKEN, only=["G9"], part=part))


def test_agents_are_recorded(server, model):
    agents_are_recorded(server, model, TOKEN)


def test_what_it_declares(server):
    declared = contract(server, TOKEN)["capabilities"]
    assert set(declared) == {
        "score",
        "score_top",
        "staged",
        "truncation",
        "seed",
        "prescribed_draws",
        "commitments",
        "stop_strings",
        "template_options",
        "tools",
        "forced_calls",
        "stream",
        "top_logprobs",
        "openai",
        "metrics",
        "leave_group",
        "relay",
        "shared",
        "delta",
    }


def test_its_metrics_tell_an_update_and_a_completion_and_vllms_own_come_after_them(server, model):
    samples = metrics_after_an_update(server, model, TOKEN)
    assert value(samples, "vllm:generation_tokens_total") > 0
    assert value(samples, "vllm:num_requests_running") == 0
    text = told(server, TOKEN)
    assert text.count("# TYPE vllm:generation_tokens_total counter") == 1
    assert text.index("contract_weight_version") < text.index("vllm:generation_tokens_total")


@pytest.fixture(scope="module")
def surface(started) -> Surface:
    return Surface(started.url, TOKEN)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_openai_surface(surface, check):
    check(surface)


def test_what_drafts_quantises_or_fetches_media_is_refused():
    lines = [
        '--speculative-config {"method":"ngram","num_speculative_tokens":2}',
        "-sc.method=ngram", "--spec-method=ngram", "--spec-model=m", "--spec-tokens=3", "-q fp8",
        "--quantization=fp8", "--kv-cache-dtype=fp8", "--enable-mm-embeds",
        "--mamba-cache-dtype=float32", "--mamba-ssm-cache-dtype=float16", "--watermark=0.5",
        "--enable-mamba-cache-stochastic-rounding", "--logits-processors=a.b", "--enable-lora",
        "--worker-cls=a.b", "--scheduler-cls=a.b", "--tokenizer=other", "--skip-tokenizer-init",
        "--enable-sleep-mode", "--load-format=dummy",
        '--model-class-overrides={"a":"b"}', "--max-num-seqs=8",
    ]  # fmt: skip
    program = Path(__file__).with_name("vllm_refusals.py")
    done = subprocess.run(
        [vllm_servers.PYTHON, program, *lines], capture_output=True, text=True, env={"PYTHONPATH": "."}
    )
    *refused, taken, image, audio, video = done.stdout.splitlines()[-len(lines) - 3 :]
    assert all("cannot be set" in line for line in refused), refused
    assert taken == "--max-num-seqs=8 is taken"
    assert image == audio == video and image.startswith("messages: this server takes text alone")


def test_hostile_requests_harm_nobody(started, model):
    harm_nobody(started, model, TOKEN)
