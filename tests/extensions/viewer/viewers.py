"""Starts the viewer, and asks it."""

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from tests.forked import Forked
from tests.limits import HANG_S

INTERRUPTED = 130  # exit status of a viewer that a signal ends before it listens, or as it begins to


class Viewer:
    """A viewer that listens at `url`, which has its token."""

    def __init__(self, process: Forked, url: str):
        self.process = process
        self.url = url
        self.port = urlsplit(url).port
        answer = self.ask(url.partition(str(self.port))[2])
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def ask(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        """Returns the answer to a request without a cookie, but with these headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=names)
        return connection.getresponse()

    def get(self, path: str, status: int = 200):
        """Returns what the API answers."""
        answer = self.ask(f"/api/{path}", Cookie=self.cookie)
        text = answer.read()
        assert answer.status == status, text
        return json.loads(text)


@contextmanager
def viewing(path: Path, *arguments: str) -> Iterator[Viewer]:
    """Yields a viewer of a run, or of a directory of runs, which ends with the block."""
    process = Forked("-m", "extensions.viewer", str(path), *arguments)
    try:
        line = process.first_line()
        assert line.startswith("view at http://127.0.0.1:"), line
        yield Viewer(process, line.split()[2])
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait()
        assert status in (0, INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL), status
