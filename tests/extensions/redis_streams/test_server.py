"""The server of a run, and a user's own: their password, their data, their configuration."""

import os
import shutil
import socket
import stat

import pytest
import redis

import launch
from contracts.support.addresses import LOOPBACK
from extensions.redis_streams.connection import REDIS_VARIABLE, Connection
from extensions.redis_streams.server import served
from extensions.redis_streams.streams import RedisStreams
from pipelinerl.config import ResolvedRun, save_config
from pipelinerl.launcher.composing.compose import compose_config
from pipelinerl.launcher.executors.base import Placement
from pipelinerl.launcher.jobs import JobPlanner
from pipelinerl.launcher.resource_requests import job_specs
from pipelinerl.streams import StreamBusyError, StreamError
from pipelinerl.streams.of_run import locate_streams, open_streams, recorded_streams
from tests.clock import Clock
from tests.streams.records import event, there

pytestmark = pytest.mark.engines


def test_the_password_is_not_seen_by_others(server, tmp_path, monkeypatch):
    arguments_file, program = tmp_path / "arguments", tmp_path / "bin" / "redis-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {arguments_file}\nexec {shutil.which("redis-server")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    with server:
        assert arguments_file.read_text() == "-\n"
        file = tmp_path / "redis" / "url"
        assert file.read_text() == server.url and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not file.exists()


def test_one_that_is_ending_is_waited_for(server, tmp_path, monkeypatch):
    server.__enter__()
    (tmp_path / "redis" / "url").unlink()
    clock = Clock(on_sleep=lambda: server.status is None and clock.sleeps == 3 and server.__exit__())
    monkeypatch.setattr("extensions.redis_streams.server.time", clock)
    with served(tmp_path / "redis") as url:
        assert url != server.url and server.status == 0
    assert clock.sleeps >= 3


def test_one_that_is_silent_is_not_waited_for_without_end(server, tmp_path, monkeypatch):
    with server, served(tmp_path / "redis") as url:
        assert url == server.url
        server.kill()
        monkeypatch.setattr("extensions.redis_streams.server.time", Clock())
        silent = pytest.raises(StreamBusyError, match="has not answered for 0.5 s: try again")
        with silent, served(tmp_path / "redis", within_s=0.5):
            pass


def test_one_server_at_a_time_runs_over_the_data_and_they_outlive_it(server, tmp_path):
    with served(tmp_path / "redis") as url:
        RedisStreams(url, "run").writer("events").append(event(0))
        with pytest.raises(StreamBusyError, match="a Redis server runs over"):
            server.__enter__()
        with served(tmp_path / "redis") as same:
            assert same == url
    with server:
        assert there(RedisStreams(server.url, "run")) == [0]
    with pytest.raises(StreamError, match="no answer"):
        Connection(server.url, "test").ping(within_s=0)


def test_a_server_that_cannot_start_says_why(server):
    port = redis.connection.parse_url(server.url)["port"]
    says = "redis-server did not start; see .*log"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StreamError, match=says):
        server.__enter__()


# --- the configuration ------------------------------------------------------------------------


def refused(capsys, *overrides: str) -> str:
    assert (
        launch.main(["inference=scripted", "trainer=scripted", "streams=redis", "plan=true", *overrides]) == 2
    )
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


def test_without_redis_server_on_the_path_a_run_is_refused_and_a_plan_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    says = "there is no redis-server on the PATH; install it"
    assert says in refused(capsys, "plan=false", f"run_dir={tmp_path}/run")
    assert launch.main(["inference=scripted", "trainer=scripted", "streams=redis", "plan=true"]) == 0
    assert f"not here: streams=redis: {says}" in capsys.readouterr().out


def test_a_wrong_password_is_one_line_before_anything_starts(capsys, redis_url, tmp_path):
    port = redis.connection.parse_url(redis_url)["port"]
    line = refused(capsys, f"streams.url='redis://:wr0ng@127.0.0.1:{port}/0'", f"run_dir={tmp_path}/run")
    assert f"redis://127.0.0.1:{port}/0 refuses the user or password" in line and REDIS_VARIABLE in line
    assert "wr0ng" not in line and not (tmp_path / "run").exists()


def test_a_password_reaches_the_jobs_by_their_environment_alone(redis_url, tmp_path):
    config = compose_config(["inference=scripted", "streams=redis", f"streams.url='{redis_url}'"])
    located = locate_streams(config, tmp_path, LOOPBACK)
    password = redis.connection.parse_url(redis_url)["password"]
    save_config(ResolvedRun.of(config, streams=located.section), tmp_path / "config.yaml")
    assert password not in (tmp_path / "config.yaml").read_text()
    placements = {request.name: Placement("node", "node", request.port) for _, request in job_specs(config)}
    jobs = JobPlanner(config, tmp_path, "token", located.environment).plan(placements)
    assert not any(password in word for job in jobs for word in job.command)
    roles = {job.role for job in jobs if job.environment.get(REDIS_VARIABLE) == redis_url}
    assert roles == {"actor", "preprocessor", "trainer"}


def test_a_users_server_is_found_again_by_the_environment(redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv(REDIS_VARIABLE, redis_url)
    config = compose_config(["streams=redis"])
    located = locate_streams(config, tmp_path, LOOPBACK)
    assert located.environment == {REDIS_VARIABLE: redis_url} and located.server is None
    begun = ResolvedRun.of(config, streams=located.section)
    save_config(begun, tmp_path / "config.yaml")
    resuming = config.model_copy(update={"resume": True})
    with pytest.raises(StreamError, match=f"has no streams of {located.run}"):
        locate_streams(resuming, tmp_path, LOOPBACK)
    open_streams(begun, tmp_path).writer("events").append(event(0))
    with recorded_streams(tmp_path) as streams:
        assert there(streams) == [0]
    again = locate_streams(resuming, tmp_path, LOOPBACK)
    assert (again.section, again.environment) == (located.section, located.environment)


def test_a_run_with_a_server_of_its_own_keeps_it_whatever_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.delenv(REDIS_VARIABLE, raising=False)
    config = compose_config(["streams=redis"])
    begun = ResolvedRun.of(config, streams=locate_streams(config, tmp_path, LOOPBACK).section)
    save_config(begun, tmp_path / "config.yaml")
    monkeypatch.setenv(REDIS_VARIABLE, "redis://127.0.0.1:1/0")
    located = locate_streams(config.model_copy(update={"resume": True}), tmp_path, LOOPBACK)
    assert located.server is not None
    assert located.section == begun.streams.model_dump(by_alias=True)
