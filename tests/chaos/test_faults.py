"""What the single faults do: to a server's answers and port, to the tail of a stream, to a disk."""

import json
import os
import signal
import urllib.error
import urllib.request
from functools import partial
from http.client import HTTPException
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from benchmarks.chaos.disk import keep_full, small_disk
from benchmarks.chaos.tail import cut_tail
from benchmarks.relays import Relays
from contracts.records import StepClosed
from pipelinerl.streams.events import recorded
from pipelinerl.streams.files import FileStreams
from tests.inference_adapters.servers import contract, serving, wait_ready
from tests.limits import HANG_S
from tests.pipeline.runs import wait_for


def refuses(url: str) -> bool:
    try:
        contract(url)
    except (OSError, json.JSONDecodeError):
        return True
    return False


def test_a_frail_server_answers_wrongly_for_a_while_and_then_not_at_all():
    with serving("benchmarks.chaos.frail_server") as server:
        wait_ready(server.url)
        server.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: refuses(server.url))
        server.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: not refuses(server.url))
        server.process.send_signal(signal.SIGUSR1)
        wait_for(lambda: refuses(server.url))
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(f"{server.url}/health")
        assert server.process.poll() is None


def answer(url: str) -> bytes | None:
    """Returns the body that a relay sends; None if it cannot be reached, or the body is not whole."""
    try:
        with urllib.request.urlopen(url, timeout=HANG_S) as response:
            return response.read()
    except (OSError, HTTPException):
        return None


def test_a_frail_relay_keeps_files_and_lies_breaks_off_and_dies_on_demand(tmp_path):
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "a").write_bytes(b"content")
    with Relays(1) as relays:
        origin, relay = (setting.split("=")[1].strip("[]") for setting in relays.settings)
        url = f"{relay}/objects/a"
        handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
        with ThreadingHTTPServer(("127.0.0.1", int(origin)), handler) as server:
            Thread(target=server.serve_forever).start()
            wait_for(lambda: answer(url) == b"content")
            server.shutdown()
        assert answer(url) == b"content"  # although the origin is gone
        for number, wrong in ((signal.SIGUSR2, b"bontent"), (signal.SIGUSR1, None)):
            relays.signal(0, number)
            wait_for(lambda wrong=wrong: answer(url) == wrong)
            relays.signal(0, number)
            wait_for(lambda: answer(url) == b"content")
        killed = relays.pid(0)
        relays.kill(0, gone_s=0.1)
        assert answer(url) is None
        wait_for(lambda: relays.pid(0) not in (None, killed))


def closed(version: int, at: float) -> StepClosed:
    return StepClosed(version=version, rollouts=1, tokens=1, lag_histogram={0: 1}, at=at)


def test_only_what_was_not_synced_is_cut(tmp_path):
    position = tmp_path / "checkpoints" / "00000001" / "position.json"
    position.parent.mkdir(parents=True)
    position.touch()
    streams = FileStreams(tmp_path / "streams")
    writer = streams.writer("trainer_events")
    for version, at in ((1, 100.0), (2, 200.0)):
        writer.append(closed(version, at))
    writer.close()
    os.utime(position, (300, 300))
    assert cut_tail(tmp_path) == []
    os.utime(position, (150, 150))
    assert cut_tail(tmp_path) == ["trainer_events"]
    assert [record.version for record in recorded(streams, "trainer_events")] == [1]


def test_a_full_disk_takes_nothing_until_it_is_freed(tmp_path):
    with small_disk(tmp_path / "disk") as is_mounted:
        if not is_mounted:
            pytest.skip("mounting is not permitted")
        keep_full(tmp_path / "disk", 0.1)
        assert list((tmp_path / "disk").iterdir()) == []
        (tmp_path / "disk" / "more").write_bytes(bytes(1 << 20))
    assert list((tmp_path / "disk").iterdir()) == []
