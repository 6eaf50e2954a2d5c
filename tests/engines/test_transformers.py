"""The transformers adapter under hostile requests; the conformance kit proves the rest of it."""

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.servers import serving, wait_ready

pytestmark = pytest.mark.engines


def test_hostile_requests_harm_nobody(tmp_path):
    model = make_tiny_model(tmp_path)
    with serving("inference_adapters.transformers", "--model", model) as server:
        wait_ready(server.url, within_s=60)
        harm_nobody(server, model)
