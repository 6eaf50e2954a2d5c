"""The SGLang adapter on the real engine: every guarantee, with one worker and with two, and a whole run of
all engines, which DeepSpeed trains."""

import contextlib
import signal
from collections.abc import Iterator

import psutil
import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.eighths import for_each_eighth
from tests.conformance.kept import assert_kept
from tests.engines.repeated_prompts import are_answered_by_one_set_of_weights
from tests.engines.scraped_updates import metrics_after_an_update
from tests.engines.sglang_servers import sglang_process, sglang_server
from tests.engines.twenty_steps import learns_in_twenty_steps
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.metrics import told, value
from tests.inference_adapters.openai_surface import CHECKS, NAME, Surface
from tests.inference_adapters.servers import Server, contract, health, wait_ready

pytestmark = pytest.mark.engines

TOKEN = "a-token"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    """The last test that uses it ends it."""
    with sglang_process(model, "--served-model-name", NAME, token=TOKEN) as server:
        wait_ready(server.url, within_s=300)
        yield server


@pytest.mark.in_turn
@for_each_eighth
def test_it_keeps_everything_it_declares(server, model, codes):
    assert_kept(check_inference([server.url], model, token=TOKEN, only=codes))


def test_what_it_declares(server):
    declared = contract(server.url, TOKEN)
    assert set(declared["capabilities"]) == {
        "arrays",
        "as_completed",
        "staged",
        "stream",
        "tools",
        "stop_strings",
        "top_logprobs",
        "openai",
        "metrics",
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


def test_a_prompt_that_is_repeated_during_an_update(server, model):
    are_answered_by_one_set_of_weights(server.url, model, TOKEN)


def test_hostile_requests_harm_nobody(server, model):
    harm_nobody(server, model, TOKEN)


@pytest.mark.long
def test_with_two_tensor_parallel_workers_too(tmp_path):
    model = make_tiny_model(tmp_path / "untied", tied=False)
    with sglang_server(model, "--tensor-parallel-size", "2", token=TOKEN) as url:
        verdicts = check_inference([url], model, token=TOKEN)
    assert_kept(verdicts)


def engine_of(server: Server) -> psutil.Process | None:
    children = psutil.Process(server.process.pid).children()
    return next((p for p in children if any("launcher.py" in part for part in p.cmdline())), None)


def test_a_server_and_its_engine_end_together(server, model):
    with sglang_process(model) as other:
        wait_ready(other.url, within_s=300)
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        server.process.wait()
        assert family and not psutil.wait_procs(family, timeout=30)[1]
        engine_of(other).kill()
        assert other.process.wait(timeout=30) == -signal.SIGTERM  # its own, and no traceback's status


def workers_importing(server: Server) -> bool:
    """SGLang's two workers have torch by now, and not yet the rest."""
    with contextlib.suppress(psutil.NoSuchProcess):  # one of the short-lived others
        family = psutil.Process(server.process.pid).children(recursive=True)
        workers = [process for process in family if "spawn_main" in " ".join(process.cmdline())]
        return len(workers) == 2 and all(
            any("libtorch_cpu" in area.path for area in worker.memory_maps()) for worker in workers
        )
    return False


@pytest.mark.parametrize("reached", [engine_of, workers_importing])
def test_an_engine_that_is_still_being_loaded_ends_with_its_server_too(model, reached):
    with sglang_process(model) as server:
        while not reached(server):
            assert server.process.poll() is None and health(server.url) != 200
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        assert family and not psutil.wait_procs(family, timeout=30)[1]


def test_a_run_of_twenty_steps(tmp_path):
    engines = learns_in_twenty_steps(
        tmp_path, "inference=all_engines", "world.servers=3", "world.server_grace_s=300", "trainer=deepspeed"
    )
    assert engines == {"transformers", "vllm", "sglang"}
