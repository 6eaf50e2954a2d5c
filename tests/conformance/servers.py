"""Broken and odd servers in processes of their own, forked from one that has imported their modules."""

import contextlib
import time
from collections.abc import Callable, Iterator

from contracts.conformance.processes import PRELOAD, fork_server
from tests.conformance import broken_servers, odd_servers
from tests.inference_adapters.servers import health
from tests.ports import free_port

PRELOAD += ["tests.conformance.broken_servers", "tests.conformance.odd_servers"]


@contextlib.contextmanager
def serving_mutant(name: str) -> Iterator[str]:
    """Yields the server's URL."""
    port = free_port()
    with _serving(broken_servers.serve, name, port, f"http://127.0.0.1:{port}") as url:
        yield url


@contextlib.contextmanager
def serving_odd(name: str) -> Iterator[str]:
    """Yields the server's URL."""
    port = free_port()
    with _serving(odd_servers.serve, name, port, odd_servers.ODD[name].url(port)) as url:
        yield url


@contextlib.contextmanager
def _serving(serve: Callable[[str, int], None], name: str, port: int, url: str) -> Iterator[str]:
    process = fork_server().Process(target=serve, args=(name, port), daemon=True)
    process.start()
    try:
        while not _ready(url):
            assert process.is_alive(), f"{name} ended with the status {process.exitcode}"
            time.sleep(0.02)
        yield url
    finally:
        process.kill()
        process.join()


def _ready(url: str) -> bool:
    try:
        return health(url) == 200
    except OSError:  # a server that ends resets its connections
        return False
