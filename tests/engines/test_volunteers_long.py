"""Longer runs over a gateway with volunteers: gateway and relay are away, and volunteers in bfloat16."""

import contextlib
import json
import re
import socket
import threading

import pytest

from benchmarks.volunteers.redraw import redraw
from extensions.volunteers.gateway import ledger
from extensions.volunteers.gateway.database import Database
from extensions.volunteers.gateway.registry import Registry
from tests.engines.volunteers_run import VolunteersRun, volunteers_run
from tests.ports import free_port

pytestmark = [pytest.mark.engines, pytest.mark.long]
AGAIN = re.compile(r"tried again in ([\d.]+) s")
LATE = re.compile(r"has not arrived after (\d+) s: no relay has given anything yet")
AWAY_S = 60


class Forwarder:
    """A port that leads to another one while it is open."""

    def __init__(self, port: int):
        self.url = f"http://127.0.0.1:{(own := free_port())}"
        self._own = own
        self._port = port
        self._sockets: list[socket.socket] = []
        self.open()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._own), reuse_port=True)
        self._sockets = [listener]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # the other side has closed it
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                return
            self._sockets += [near, far]
            for pair in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=pair, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def waited(run: VolunteersRun, what: re.Pattern[str]) -> list[float]:
    """Returns the seconds that a volunteer has told each time."""
    return [float(each) for each in what.findall((run.out / "ana.log").read_text())]


def finished(run: VolunteersRun, steps: int) -> None:
    assert run.launch.wait() == 0, (run.out / "launch.log").read_text()[-2000:]
    summary = json.loads((run.out / "run" / "summary.json").read_text())
    assert (summary["accounting_errors"], summary["rollouts_lost"]) == ([], 0)
    assert (summary["optimizer_steps"], summary["rollouts_failed"]) == (steps, {})


def test_gateway_and_relay_are_away_for_a_minute(tmp_path):
    gateway_port, origin_port = free_port(), free_port()
    gateway, relay = Forwarder(gateway_port), Forwarder(origin_port)
    settings = [
        f"weights.origin_port={origin_port}",
        f"inference.arguments.public_url={gateway.url}",
        f"inference.arguments.public_sources={relay.url}",
    ]
    with volunteers_run(tmp_path, 12, *settings, port=gateway_port) as run:
        for name in ("ana", "ben"):
            run.join(name)
        run.until_worked("ana", "ben")
        relay.close()
        run.until(lambda: AWAY_S in waited(run, LATE))
        relay.open()
        run.until_worked("ana", "ben")
        before = len(waited(run, AGAIN))
        gateway.close()
        run.until(lambda: sum(waited(run, AGAIN)[before:]) >= AWAY_S)
        gateway.open()
        finished(run, 12)
    database = Database(run.state, create=False)
    ledger.verify(database)
    assert {(each.state, each.recent_strikes) for each in Registry(database).every()} == {("active", 0)}
    assert redraw(tmp_path / "run", database)[1] == 0


def test_a_trusted_server_draws_what_bfloat16_volunteers_drew(tmp_path):
    with volunteers_run(tmp_path, 12, "inference.arguments.volunteer_dtype=bfloat16") as run:
        for name in ("ana", "ben"):
            run.join(name)
        finished(run, 12)
    database = Database(run.state, create=False)
    volunteers = Registry(database).every()
    assert {each.state for each in volunteers} == {"active"}
    near_misses = sum(each.near_misses for each in volunteers)
    for dtype in ("bfloat16", "float32"):
        alike, other, _ = redraw(tmp_path / "run", database, dtype)
        print(f"in {dtype}: {alike} alike, {other} otherwise, {near_misses} near misses")
        assert other <= near_misses
        assert alike >= (0.99 if dtype == "bfloat16" else 0.98) * (alike + other)
