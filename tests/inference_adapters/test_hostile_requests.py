"""Hostile requests against an engine without a model; tests/engines has the real ones."""

from tests.inference_adapters.hostile.clients import harm_nobody


def test_hostile_requests_harm_nobody(echo):
    harm_nobody(echo, "scripted")
