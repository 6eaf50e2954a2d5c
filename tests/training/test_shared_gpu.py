"""A trainer rank whose GPU has a server too."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from contracts.errors import CannotContinueError
from contracts.records import ServerJoined, ServerLeft
from pipelinerl.components import instantiate
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training import shared_gpu
from pipelinerl.training.shared_gpu import check_free_memory, wait_for_servers
from tests.limits import HANG_S

AWAY = "http://127.0.0.1:9"
SHAPE = (
    "+model.shape={layers: 24, hidden_size: 896, intermediate_size: 4864, heads: 14, kv_heads: 2,"
    " head_dim: 64, vocab_size: 151936, context: 32768, tied: true}"
)


@pytest.fixture
def health(monkeypatch):
    """The URL of a server, and its answers to `/health`, which it gives one after the other."""
    answers = ["loading", "loading", "unhealthy"]

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"status": answers.pop(0)}).encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(shared_gpu, "POLL_S", 0)
    server = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()


def launched(tmp_path, *urls: str) -> LaunchedServers:
    """The servers at the addresses, and one that has left."""
    streams = FileStreams(tmp_path)
    events = streams.writer("launcher_events")
    for number, url in enumerate(["http://127.0.0.1:10", *urls]):
        name = f"server-{number}"
        events.append(ServerJoined(number=number, name=name, url=url, node="here", engine="x"))
    events.append(ServerLeft(name="server-0", url="http://127.0.0.1:10", why="condemned"))
    return LaunchedServers(streams)


def test_it_begins_when_no_server_loads_also_if_one_waits_for_its_weights(tmp_path, health):
    url, answers = health
    wait_for_servers(launched(tmp_path, url), HANG_S)
    assert answers == []


def test_it_waits_no_longer_than_a_server_may_take_to_start(tmp_path, caplog):
    wait_for_servers(launched(tmp_path, AWAY), 0)
    assert "server-1 loads for 0 s" in caplog.text


def test_it_refuses_too_little_memory():
    config = compose_config(["trainer=fsdp", SHAPE])
    worker = instantiate(config.trainer)
    shape = config.model.shape
    needed = sum(worker.memory(shape, 1, max(config.packing.micro_batch_tokens, 80)).values())
    check_free_memory(config, worker, shape, (needed, 2 * needed))
    check_free_memory(config, worker, None, (0, needed))  # a model whose shape is not known
    with pytest.raises(CannotContinueError, match=r"or another process \(nvidia-smi\) has the rest"):
        check_free_memory(config, worker, shape, (needed - 1, 2 * needed))
