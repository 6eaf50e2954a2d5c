"""The server of a run's own is watched: what counts as silence, and what follows a death."""

import os
import signal
import threading

import pytest
import redis

from pipelinerl.launcher.supervising.ends import JobFailedError
from pipelinerl.launcher.supervising.events import RestartLog
from pipelinerl.launcher.supervising.own_redis import LONGEST_SILENCE_S, OwnRedis, Silence
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.redis_server import RedisServer
from tests.pipeline.runs import wait_for


def test_silence_is_too_long_after_as_many_seconds_of_questions_without_an_answer():
    silence = Silence(began=0.0)
    for now in range(5, 30, 5):
        silence.observe(now, answers=False)
        assert not silence.is_too_long
    silence.observe(30, answers=False)
    assert silence.is_too_long


def test_an_answer_ends_the_silence():
    silence = Silence(began=0.0)
    for now in range(5, 500, 5):
        silence.observe(now, answers=now % 25 == 0)
        assert not silence.is_too_long


def test_a_launcher_that_was_stopped_itself_does_not_take_that_for_silence():
    silence = Silence(began=0.0)
    silence.observe(10_000, answers=False)
    assert not silence.is_too_long and silence.seconds < LONGEST_SILENCE_S


# --- with a real server -----------------------------------------------------------------------


def kill(server: RedisServer) -> None:
    os.kill(redis.Redis.from_url(server.url).info("server")["process_id"], signal.SIGKILL)


@pytest.mark.engines
def test_a_killed_server_is_away_until_it_is_back_with_its_data(tmp_path, capfd):
    streams = FileStreams(tmp_path / "streams")
    told = RestartLog(tmp_path, streams.writer("launcher_events"))
    with RedisServer(tmp_path / "redis") as server, OwnRedis(server, 1) as own:
        client = redis.Redis.from_url(server.url)
        client.set("key", "value")
        assert not own.is_away()
        kill(server)
        wait_for(own.is_away)
        wait_for(lambda: not own.is_away())
        assert client.get("key") == b"value"
        own.tell(told)
        own.tell(told)
    why = f"redis was killed by signal 9 (out of memory?); see {server.log}"
    assert capfd.readouterr().err == f"launch.py: {why}; it is started again\n"
    assert server.status == 0
    (restarted,) = [entry.record for entry in streams.reader("launcher_events").read(timeout_s=0)]
    assert (restarted.kind, restarted.names) == ("services", ["redis"])
    assert restarted.why == why


@pytest.mark.engines
def test_a_spent_budget_is_a_failure_by_name(tmp_path):
    with RedisServer(tmp_path / "redis") as server, OwnRedis(server, 0) as own:
        kill(server)
        wait_for(lambda: own.failure)
        with pytest.raises(
            JobFailedError, match="redis was killed by signal 9 .*; see .*redis/log"
        ) as failed:
            own.is_away()
        assert "restarts.services=0 allows no further restart within 10 minutes" in str(failed.value)


@pytest.mark.engines
def test_it_does_not_start_what_the_end_of_the_run_has_ended(tmp_path):
    server = RedisServer(tmp_path / "redis")
    with server, OwnRedis(server, 8):
        pass
    assert server.status == 0
    wait_for(lambda: "redis" not in [thread.name for thread in threading.enumerate()])
