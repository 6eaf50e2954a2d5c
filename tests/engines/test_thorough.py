"""The longer depth of the kit on each engine: `make soak`."""

import pytest

from contracts.conformance.inference.kit import check_inference
from contracts.conformance.tiny_model import make_tiny_model
from tests.conformance.kept import assert_kept
from tests.engines.servers import ENGINES, engine_server

pytestmark = pytest.mark.long

TOKEN = "a-token"


@pytest.mark.parametrize("engine", ENGINES)
def test_keeps_everything(engine, tmp_path):
    model = make_tiny_model(tmp_path)
    with engine_server(engine, model, token=TOKEN) as server:
        assert_kept(check_inference([server.url], model, token=TOKEN, thorough=True))
