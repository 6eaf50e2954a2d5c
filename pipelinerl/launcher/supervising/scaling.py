"""Requests to change the number of servers of a run, and the launcher's answers: files in the run directory.

`pipelinerl.scale` writes a request, which the supervisor reads a few times a second. Files work from every
node that shares the run directory.
"""

import secrets
import time
from pathlib import Path
from typing import NamedTuple

from contracts.support.files import write_atomically
from pipelinerl.launcher.terminal import print_message

REQUEST = "servers"
ANSWERS = ".servers-answer-"  # followed by the request's id
POLL_S = 0.2


class ScaleRequest(NamedTuple):
    id: str
    servers: int


def request_servers(run_dir: Path, servers: int, within_s: float) -> str | None:
    """Returns the launcher's reason for a refusal, "" for acceptance, or None if no answer came in time."""
    request_id = secrets.token_hex(8)
    request = run_dir / REQUEST
    answer = run_dir / f"{ANSWERS}{request_id}"
    write_atomically(request, f"{request_id} {servers}\n")
    began = time.monotonic()
    while not answer.exists():
        if time.monotonic() > began + within_s:
            if _text(request).startswith(request_id):  # a newer request stays
                request.unlink(missing_ok=True)
            return None
        time.sleep(POLL_S)
    refusal = _text(answer)
    answer.unlink()
    return refusal


def remove_scale_requests(run_dir: Path) -> None:
    for path in [run_dir / REQUEST, *run_dir.glob(f"{ANSWERS}*")]:
        path.unlink(missing_ok=True)


class ScaleRequests:
    """Reads and answers the requests, for the launcher."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._taken = run_dir / f".{REQUEST}"

    def read(self) -> ScaleRequest | None:
        """Returns a request since the last call, or None."""
        try:
            (self._run_dir / REQUEST).replace(self._taken)  # atomic, because a newer one may be written now
        except FileNotFoundError:
            return None
        request_id, _, servers = _text(self._taken).partition(" ")
        self._taken.unlink()
        if not (request_id.isalnum() and servers.isdecimal() and 0 < len(servers) < 9 and int(servers)):
            return None
        return ScaleRequest(request_id, int(servers))

    def answer(self, request: ScaleRequest, refusal: str) -> None:
        """Answers with the reason for the refusal, or "" for acceptance."""
        try:
            write_atomically(self._run_dir / f"{ANSWERS}{request.id}", refusal)
        except OSError as error:
            print_message(f"who asked for servers is not answered: {error}")


def _text(path: Path) -> str:
    """Returns the text of a file, or "" if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
