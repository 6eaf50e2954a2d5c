"""vLLM with asynchronous scheduling, as on a GPU (`overlapped_vllm`): `make soak-overlapped-vllm`."""

import pytest

from benchmarks import vllm_servers
from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.kept import assert_kept
from tests.engines.servers import ENVIRONMENT
from tests.inference_adapters.servers import serving, wait_ready

pytestmark = pytest.mark.long

TOKEN = "a-token"


def test_content_caches_probabilities_labels_and_endurance(tmp_path):
    model = make_tiny_model(tmp_path)
    with serving(
        "tests.engines.overlapped_vllm",
        *("--model", model, *vllm_servers.OPTIONS),
        python=vllm_servers.PYTHON,
        environment=ENVIRONMENT | {TOKEN_VARIABLE: TOKEN},
    ) as server:
        wait_ready(server.url)
        assert_kept(check_inference([server.url], model, token=TOKEN, only=["G1", "G3", "G4", "G5", "G8"]))
