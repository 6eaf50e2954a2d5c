"""Hostile requests against an engine without a model; tests/engines has the real ones."""

import asyncio

from tests.inference_adapters.hostile_clients import MEBIBYTE, onslaught
from tests.inference_adapters.servers import serving, wait_ready


def test_hostile_requests_harm_nobody():
    with serving("tests.inference_adapters.echo_engine") as server:
        wait_ready(server.url)
        outcome = asyncio.run(onslaught(server, "scripted", 600))
    assert outcome.faults == []
    assert outcome.sent == 600 and outcome.normal > 20 and outcome.given_up < 10, outcome
    assert outcome.grown_bytes < 64 * MEBIBYTE, outcome
