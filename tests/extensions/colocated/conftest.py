"""Fixtures of the publishers' tests."""

from tests.pipeline.conftest import worker

__all__ = ["worker"]
