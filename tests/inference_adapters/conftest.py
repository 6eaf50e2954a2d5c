"""The server that the tests in this directory share. Each test takes it over."""

from collections.abc import Iterator

import pytest

from tests.inference_adapters.servers import Server, serving, wait_ready


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("tests.inference_adapters.held_engine") as started:
        wait_ready(started.url)
        yield started


@pytest.fixture(scope="session")
def echo() -> Iterator[Server]:
    """A server that says what it was last told, and takes tools."""
    with serving("tests.inference_adapters.echo_engine") as started:
        wait_ready(started.url)
        yield started
