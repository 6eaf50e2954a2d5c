"""The longer depth of the kit on each engine: `make soak`."""

import contextlib
from collections.abc import Iterator

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from contracts.support.token import TOKEN_VARIABLE
from tests.conformance.kept import assert_kept
from tests.engines.sglang_servers import sglang_server
from tests.engines.vllm_servers import vllm_server
from tests.inference_adapters.servers import serving, wait_ready

pytestmark = pytest.mark.long

TOKEN = "a-token"


@contextlib.contextmanager
def transformers_server(model: str, token: str) -> Iterator[str]:
    """Its URL."""
    environment = {TOKEN_VARIABLE: token}
    with serving("inference_adapters.transformers", "--model", model, environment=environment) as server:
        wait_ready(server.url)
        yield server.url


SERVERS = {"transformers": transformers_server, "vllm": vllm_server, "sglang": sglang_server}


@pytest.mark.parametrize("engine", SERVERS)
def test_keeps_everything(engine, tmp_path):
    model = make_tiny_model(tmp_path)
    with SERVERS[engine](model, token=TOKEN) as url:
        assert_kept(check_inference([url], model, token=TOKEN, thorough=True))
