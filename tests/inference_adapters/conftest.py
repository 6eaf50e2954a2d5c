"""The scripted server that the tests of this folder share; each takes it over with a run of its own."""

from collections.abc import Iterator

import pytest

from tests.inference_adapters.servers import Server, serving, wait_ready

TOKEN_DELAY_S = 0.005


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("inference_adapters.scripted", "--token-delay-s", str(TOKEN_DELAY_S)) as started:
        wait_ready(started.url)
        yield started
