"""Real inference servers in processes of their own, for tests."""

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

from tests.forked import Forked
from tests.limits import HANG_S

CHANNELS = ("--weight-channels", "extensions.stored_weights.channels.StoredChannels")
LOOK_S = 0.02  # between two looks at a server that starts


@dataclass
class Server:
    url: str
    process: subprocess.Popen[str] | Forked


@contextlib.contextmanager
def serving(
    module: str, *options: str, python: str | None = None, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Yields `python -m module` on a free port, after its first line; it may still be loading.

    With a `python` of another environment it runs as a command; with this one's it is forked.
    """
    command = ["-m", module, "--port", "0", *options]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    if python:
        process = subprocess.Popen([python, *command], stdout=subprocess.PIPE, text=True, env=variables)
    else:
        process = Forked(*command, environment=variables)
    try:
        line = process.stdout.readline() if python else process.first_line()
        assert line.startswith("listening at "), f"{module} did not start: {line!r}"
        yield Server(line.removeprefix("listening at ").strip(), process)
    finally:
        process.kill()
        process.wait()


def health(url: str) -> int:
    """Returns the HTTP status of /health; 0 if there is no server or no response."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HANG_S) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, TimeoutError):
        return 0


def contract(url: str, token: str | None = None) -> dict:
    """Returns the response to `GET /contract`."""
    request = urllib.request.Request(f"{url}/contract", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        return json.load(answer)


def wait_ready(url: str, within_s: float = HANG_S) -> None:
    for _ in range(round(within_s / LOOK_S)):
        if health(url) == 200:
            return
        time.sleep(LOOK_S)
    raise AssertionError(f"{url} is not ready after {within_s} s")


@contextlib.contextmanager
def ready_servers(count: int, *options: str) -> Iterator[list[Server]]:
    """Yields scripted servers that are ready. A publisher takes them over from the one before."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serving("inference_adapters.scripted", *options)) for _ in range(count)
        ]
        for server in servers:
            wait_ready(server.url)
        yield servers
