"""The servers that the tests in this directory share. Each test takes over the scripted one."""

from collections.abc import Iterator

import pytest

from tests.inference_adapters.raw_requests import OK, answer_to, post
from tests.inference_adapters.servers import Server, serving, wait_ready

TOKEN_DELAY_S = 0.005


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("inference_adapters.scripted", "--token-delay-s", str(TOKEN_DELAY_S)) as started:
        wait_ready(started.url)
        yield started


@pytest.fixture(scope="module")
def limited() -> Iterator[Server]:
    """A server with small limits."""
    with serving("tests.inference_adapters.limited_server") as started:
        wait_ready(started.url)
        yield started


@pytest.fixture
def serves_on(limited) -> Iterator[None]:
    """Checks that the server answers a valid request after the test."""
    yield
    assert answer_to(limited, post("/v1/completions", OK))[0] == 200
