"""Broken servers in processes of their own, forked from one that has imported everything."""

import contextlib
from collections.abc import Iterator

from contracts.conformance.processes import PRELOAD, fork_server
from tests.conformance.broken_servers import serve
from tests.inference_adapters.servers import wait_ready
from tests.ports import free_port

PRELOAD.append("tests.conformance.broken_servers")


@contextlib.contextmanager
def serving_mutant(name: str) -> Iterator[str]:
    """Its URL."""
    port = free_port()
    process = fork_server().Process(target=serve, args=(name, port), daemon=True)
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        yield url
    finally:
        process.kill()
        process.join()
