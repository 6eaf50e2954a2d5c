"""SGLang with two workers, while it loads and ends, and in a whole run of all engines: `make soak`."""

import contextlib
import signal
from collections.abc import Iterator

import psutil
import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.kept import assert_kept
from tests.engines.repeated_prompts import are_answered_by_one_set_of_weights
from tests.engines.servers import engine_process, engine_server
from tests.engines.twenty_steps import learns_in_twenty_steps
from tests.inference_adapters.servers import Server, health
from tests.limits import HANG_S

pytestmark = pytest.mark.long

TOKEN = "a-token"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model) -> Iterator[Server]:
    """The last test that uses it ends it."""
    with engine_server("sglang", model, token=TOKEN) as server:
        yield server


def test_a_prompt_that_is_repeated_during_an_update(server, model):
    are_answered_by_one_set_of_weights(server.url, model, TOKEN)


def test_with_two_tensor_parallel_workers_too(tmp_path):
    model = make_tiny_model(tmp_path / "untied", tied=False)
    with engine_server("sglang", model, "--tensor-parallel-size", "2", token=TOKEN) as server:
        verdicts = check_inference([server.url], model, token=TOKEN)
    assert_kept(verdicts)


def engine_of(server: Server) -> psutil.Process | None:
    children = psutil.Process(server.process.pid).children()
    return next((p for p in children if any("launcher.py" in part for part in p.cmdline())), None)


def test_a_server_and_its_engine_end_together(server, model):
    with engine_server("sglang", model) as other:
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        server.process.wait()
        assert family and not psutil.wait_procs(family, timeout=HANG_S)[1]
        engine_of(other).kill()
        assert other.process.wait(timeout=HANG_S) == -signal.SIGTERM  # its own, and no traceback's status


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
    with engine_process("sglang", model) as server:
        while not reached(server):
            assert server.process.poll() is None and health(server.url) != 200
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.kill()
        assert family and not psutil.wait_procs(family, timeout=HANG_S)[1]


def test_a_run_of_twenty_steps(tmp_path):
    engines = learns_in_twenty_steps(
        tmp_path, "inference=all_engines", "world.servers=3", "world.server_grace_s=600", "trainer=deepspeed"
    )
    assert engines == {"transformers", "vllm", "sglang"}
