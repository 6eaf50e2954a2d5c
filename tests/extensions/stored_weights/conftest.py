"""Fixtures of several files."""

from collections.abc import Iterator

import pytest

from tests.inference_adapters.servers import CHANNELS, Server, ready_servers
from tests.pipeline.conftest import ranks, url, urls, worker

__all__ = ["pair", "ranks", "url", "urls", "worker"]


@pytest.fixture(scope="session")
def pair() -> Iterator[list[Server]]:
    """Yields two servers that take weight channels, for tests that leave them alive."""
    with ready_servers(2, *CHANNELS) as servers:
        yield servers
