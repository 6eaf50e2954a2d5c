"""Real SGLang servers on the CPU, from the environment that `make sglang-env` builds."""

import contextlib
from collections.abc import Iterator

from benchmarks.sglang_servers import OPTIONS, PYTHON
from contracts.support.token import TOKEN_VARIABLE
from tests.inference_adapters.servers import Server, serving, wait_ready

ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}  # as for vLLM: its growth would look like a leak


@contextlib.contextmanager
def sglang_process(model: str, *options: str, token: str | None = None) -> Iterator[Server]:
    """Yields the server, which may still be loading."""
    environment = ENVIRONMENT | ({TOKEN_VARIABLE: token} if token else {})
    arguments = ["--model", model, *OPTIONS, *options]
    with serving("inference_adapters.sglang", *arguments, python=PYTHON, environment=environment) as server:
        yield server


@contextlib.contextmanager
def sglang_server(model: str, *options: str, token: str | None = None) -> Iterator[str]:
    """Yields the server's URL."""
    with sglang_process(model, *options, token=token) as server:
        wait_ready(server.url)
        yield server.url
