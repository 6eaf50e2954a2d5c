"""The origin in a process of its own, and plain HTTP requests to it."""

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipelinerl.paths import ROOT
from tests.limits import HANG_S


@dataclass(frozen=True)
class Answer:
    """An HTTP response. Its headers have names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@contextmanager
def running_origin(store: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """Yields the URL of a new origin and its process."""
    command = [sys.executable, "-m", "contracts.store.origin", str(store), "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()[-1], process
    finally:
        process.terminate()
        process.communicate()


def ask(url: str, path: str, headers=None, method: str = "GET") -> Answer:
    """Returns the response to one request. The path is sent as it is."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=HANG_S)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()
