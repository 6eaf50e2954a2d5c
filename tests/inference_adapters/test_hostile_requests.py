"""Hostile requests against an engine without a model; tests/engines has the real ones."""

from tests.inference_adapters.hostile.clients import harm_nobody
from tests.inference_adapters.servers import serving, wait_ready


def test_hostile_requests_harm_nobody():
    """The whole table, and some mutations."""
    with serving("tests.inference_adapters.echo_engine") as server:
        wait_ready(server.url)
        harm_nobody(server, "scripted")
