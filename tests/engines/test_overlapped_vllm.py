"""vLLM with asynchronous scheduling, as on a GPU (`overlapped_vllm`): `make soak-overlapped-vllm`."""

import contextlib
from collections.abc import Iterator

import pytest

from benchmarks import vllm_servers
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.kept import assert_kept
from tests.engines.servers import ENVIRONMENT
from tests.inference_adapters.servers import contract, serving, wait_ready
from tests.limits import HANG_S

pytestmark = pytest.mark.long

TOKEN = "a-token"


@contextlib.contextmanager
def overlapped(model: str, **environment: str) -> Iterator[str]:
    """Yields the URL of a server that is ready."""
    with serving(
        "tests.engines.overlapped_vllm",
        *("--model", model, *vllm_servers.OPTIONS),
        python=vllm_servers.PYTHON,
        environment=ENVIRONMENT | environment | {TOKEN_VARIABLE: TOKEN},
    ) as server:
        wait_ready(server.url)
        yield server.url


def test_content_caches_probabilities_labels_and_endurance(tmp_path):
    model = make_tiny_model(tmp_path)
    with overlapped(model) as url:
        assert_kept(check_inference([url], model, token=TOKEN, only=["G1", "G3", "G4", "G5", "G8", "G17"]))


def test_the_second_model_runner_has_the_weights_that_were_sent_and_no_older_cache(tmp_path):
    model = make_tiny_model(tmp_path)
    with overlapped(model, TRITON_INTERPRET="1") as url:
        for guarantee, part in [("G1", "formats"), ("G3", "takeover"), ("G5", "queued")]:
            checked = {"only": [guarantee], "part": part}
            assert_kept(check_inference([url], model, token=TOKEN, answer_s=HANG_S, **checked))
        declared = contract(url, TOKEN)["capabilities"]
        assert "score" not in declared  # which the adapter offers with the first runner alone
