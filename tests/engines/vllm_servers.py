"""Real vLLM servers on the CPU, from the environment that `make vllm-env` builds."""

import contextlib
from collections.abc import Iterator

from benchmarks.vllm_servers import OPTIONS, PYTHON
from contracts.support.token import TOKEN_VARIABLE
from tests.inference_adapters.servers import Server, serving, wait_ready

ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # vLLM keeps a compiled kernel for each shape of batch that it meets, up to this many (1024 by default):
    # far more than the weights of a tiny model, so that filling them would look like a leak to G8.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}


@contextlib.contextmanager
def vllm_process(model: str, *options: str, token: str | None = None) -> Iterator[Server]:
    """Yields the server, which may still be loading."""
    environment = ENVIRONMENT | ({TOKEN_VARIABLE: token} if token else {})
    arguments = ["--model", model, *OPTIONS, *options]
    with serving("inference_adapters.vllm", *arguments, python=PYTHON, environment=environment) as server:
        yield server


@contextlib.contextmanager
def vllm_server(model: str, *options: str, token: str | None = None) -> Iterator[str]:
    """Yields the server's URL."""
    with vllm_process(model, *options, token=token) as server:
        wait_ready(server.url)
        yield server.url
