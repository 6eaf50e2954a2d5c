"""Real servers on the CPU, each from the environment that the Makefile builds for its engine."""

import contextlib
from collections.abc import Iterator

from benchmarks import sglang_servers, vllm_servers
from contracts.support.token import TOKEN_VARIABLE
from tests.inference_adapters.servers import CHANNELS, Server, serving, wait_ready

ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # Both keep a compiled kernel for each shape of batch that they meet, up to this many (1024 by default).
    # That is far more than the weights of a tiny model: filling it would look like a leak to G8.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
}
BUILT = {"vllm": vllm_servers, "sglang": sglang_servers}
ENGINES = ("transformers", *BUILT)


@contextlib.contextmanager
def engine_process(engine: str, model: str, *options: str, token: str | None = None) -> Iterator[Server]:
    """Yields the server, which may still be loading."""
    environment = ENVIRONMENT | ({TOKEN_VARIABLE: token} if token else {})
    built = BUILT.get(engine)
    arguments = ["--model", model, *(built.OPTIONS if built else []), *options]
    python = built.PYTHON if built else None
    with serving(
        f"inference_adapters.{engine}", *CHANNELS, *arguments, python=python, environment=environment
    ) as server:
        yield server


@contextlib.contextmanager
def engine_server(engine: str, model: str, *options: str, token: str | None = None) -> Iterator[Server]:
    """Yields the server, which is ready."""
    with engine_process(engine, model, *options, token=token) as server:
        wait_ready(server.url)
        yield server
