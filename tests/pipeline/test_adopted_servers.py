"""Servers that run already (`inference.urls`), and one that is started by a command of its own."""

import json
import sys

import pytest

from contracts.support.token import TOKEN_VARIABLE
from pipelinerl.launcher import adopted_server
from pipelinerl.launcher.adopted_server import watch
from tests.inference_adapters.servers import health, serving
from tests.pipeline.runs import assert_accounted, finish, start
from tests.ports import free_port

TOKEN = "of-the-server"


@pytest.fixture
def adopted():
    """The URL of a scripted server that no run has started."""
    with serving("inference_adapters.scripted", environment={TOKEN_VARIABLE: TOKEN}) as server:
        yield server.url


def test_a_run_with_a_server_that_runs_already_and_one_of_a_command(tmp_path, adopted, monkeypatch):
    run = tmp_path / "run"
    command = f"[{sys.executable},-m,inference_adapters.scripted,--host,'{{host}}',--port,'{{port}}']"
    settings = (f"inference.urls=[{adopted}]", f"inference.command={command}", "world.servers=2")
    status, err = finish(start(run, *settings))
    assert status == 2 and "it refuses the token: set PIPELINERL_TOKEN" in err
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    status, err = finish(start(run, *settings))
    assert status == 0, err
    assert_accounted(run)
    assert json.loads((run / "summary.json").read_text())["rollouts_trained"] > 0
    assert health(adopted) == 200  # its end is not the run's


def test_a_server_that_does_not_answer_is_gone():
    url = f"http://127.0.0.1:{free_port()}"
    assert f"{url} has not answered for 0 s" in watch(url, first_wait_s=0)


def test_a_server_that_belongs_to_no_run_any_more_was_started_again(monkeypatch):
    runs = iter([None, "a", "b", None])
    monkeypatch.setattr(adopted_server, "run_of", lambda url: next(runs))
    monkeypatch.setattr(adopted_server, "LOOK_S", 0)
    assert watch("http://a", first_wait_s=0) == "http://a was started again"
