"""Broken servers in processes of their own, forked from one that has imported everything."""

import contextlib
import multiprocessing
from collections.abc import Iterator

from tests.conformance.broken_servers import serve
from tests.inference.servers import wait_ready
from tests.trainer.workers import free_port


@contextlib.contextmanager
def serving_mutant(name: str) -> Iterator[str]:
    """Its URL."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conformance.broken_servers"])
    port = free_port()
    process = context.Process(target=serve, args=(name, port), daemon=True)
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        yield url
    finally:
        process.kill()
        process.join()
