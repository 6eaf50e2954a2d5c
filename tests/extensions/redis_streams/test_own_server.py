"""The server of a run's own is watched: what counts as silence, and what follows a death."""

import os
import signal
import threading

import pytest
import redis

from contracts.support.addresses import LOOPBACK
from extensions.redis_streams.own_server import LONGEST_SILENCE_S, OwnServer, Silence
from pipelinerl.launcher.supervising.failures import JobFailedError
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


def kill(server: OwnServer) -> None:
    os.kill(redis.Redis.from_url(server.url).info("server")["process_id"], signal.SIGKILL)


@pytest.mark.engines
def test_a_killed_server_is_away_until_it_is_back_with_its_data(tmp_path, capfd):
    with OwnServer(tmp_path / "redis", LOOPBACK, 1) as server:
        client = redis.Redis.from_url(server.url)
        client.set("key", "value")
        assert not server.is_away()
        kill(server)
        wait_for(server.is_away)
        wait_for(lambda: not server.is_away())
        assert client.get("key") == b"value"
        restarts = [*server.restarts(), *server.restarts()]
    why = f"redis was killed by signal 9 (out of memory?); see {server.log}"
    assert capfd.readouterr().err == f"launch.py: {why}; it is started again\n"
    assert server.status == 0
    assert (server.name, restarts) == ("redis", [why])


@pytest.mark.engines
def test_a_spent_budget_is_a_failure_by_name(tmp_path):
    with OwnServer(tmp_path / "redis", LOOPBACK, 0) as server:
        kill(server)
        wait_for(lambda: server.failure)
        with pytest.raises(
            JobFailedError, match="redis was killed by signal 9 .*; see .*redis/log"
        ) as failed:
            server.is_away()
        assert "restarts.services=0 allows no further restart within 10 minutes" in str(failed.value)


@pytest.mark.engines
def test_it_does_not_start_what_the_end_of_the_run_has_ended(tmp_path):
    with OwnServer(tmp_path / "redis", LOOPBACK, 8) as server:
        pass
    assert server.status == 0
    wait_for(lambda: "redis" not in [thread.name for thread in threading.enumerate()])
