"""A trainer rank whose GPU has a server too."""

import pytest

from contracts.errors import CannotContinueError
from contracts.records import ServerJoined
from pipelinerl.components import instantiate
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.shared_gpu import check_room, wait_for_server
from tests.inference_adapters.servers import health, serving

SHAPE = (
    "+model.shape={layers: 24, hidden_size: 896, intermediate_size: 4864, heads: 14, kv_heads: 2,"
    " head_dim: 64, vocab_size: 151936, context: 32768, tied: true}"
)


def test_it_begins_when_the_server_of_its_gpu_is_ready(tmp_path):
    streams = FileStreams(tmp_path)
    events = streams.writer("launcher_events")
    with serving("inference_adapters.scripted") as server:
        joined = {"node": "here", "engine": "scripted"}
        events.append(ServerJoined(number=1, name="server-1", url="http://127.0.0.1:9", **joined))
        events.append(ServerJoined(number=2, name="server-0", url=server.url, **joined))
        wait_for_server(LaunchedServers(streams), "server-0", longest_s=600)
        assert health(server.url) == 200


def test_it_waits_no_longer_than_a_server_may_take_to_start(tmp_path, caplog):
    streams = FileStreams(tmp_path)
    streams.writer("launcher_events")
    wait_for_server(LaunchedServers(streams), "server-0", longest_s=0)
    assert "server-0 was not ready in 0 s" in caplog.text


def test_it_refuses_too_little_room():
    config = compose_config(["trainer=fsdp", SHAPE])
    worker = instantiate(config.trainer)
    longest = max(config.packing.micro_batch_tokens, 80)
    needed = sum(worker.memory(config.model.shape, 1, longest).values())
    check_room(config, worker, needed)
    with pytest.raises(CannotContinueError, match=r"give the server less in inference\.arguments"):
        check_room(config, worker, needed - 1)
