"""Workers that are silent, and what a worker's heartbeat writes."""

import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from pipelinerl.heartbeat import EVERY_S, Heartbeat, beat_path
from pipelinerl.launcher.supervising.worker_policy import FIRST_BEAT_S, MARGIN_S, Liveness

HANGS = """
import sys, time
from pathlib import Path
from pipelinerl.heartbeat import Heartbeat

def hang_here():
    time.sleep(1000)

Heartbeat(Path(sys.argv[1]), "actor", silence_s=0.5)
print("begun", flush=True)
hang_here()
"""


def test_one_that_beats_is_not_silent_whatever_its_clock_says(tmp_path):
    liveness = Liveness(tmp_path, timeout_s=1000)
    liveness.started("actor", 0)
    beat_path(tmp_path, "actor").parent.mkdir()
    for now in range(0, 10000, 900):
        beat_path(tmp_path, "actor").unlink(missing_ok=True)
        beat_path(tmp_path, "actor").touch()
        assert liveness.silent(["actor"], now) == []
    assert liveness.silent(["actor"], 9900 + 1000) == []
    assert liveness.silent(["actor"], 9900 + 1000.1 + MARGIN_S) == ["actor"]


def test_one_that_begins_has_time_for_its_imports_and_owes_nothing_to_the_one_before(tmp_path):
    beat_path(tmp_path, "actor").parent.mkdir()
    beat_path(tmp_path, "actor").touch()
    liveness = Liveness(tmp_path, timeout_s=10)
    liveness.started("actor", 0)
    assert liveness.silent(["actor"], FIRST_BEAT_S + 1) == ["actor"]
    liveness.started("actor", 200)
    assert liveness.silent(["actor"], 200 + FIRST_BEAT_S - 1) == []
    assert liveness.silent(["actor"], 200 + FIRST_BEAT_S + 1) == ["actor"]


def in_a_thread(work) -> None:
    thread = Thread(target=work)
    thread.start()
    thread.join()


def test_another_thread_does_not_beat_for_the_worker(tmp_path):
    times = iter([0.0, EVERY_S, EVERY_S])
    heartbeat = Heartbeat(tmp_path, "actor", silence_s=600, clock=lambda: next(times))
    beat_path(tmp_path, "actor").unlink()
    in_a_thread(heartbeat.beat)
    assert not beat_path(tmp_path, "actor").exists()
    heartbeat.beat()
    assert beat_path(tmp_path, "actor").exists()


def test_a_wait_beats(tmp_path):
    heartbeat = Heartbeat(tmp_path, "actor", silence_s=600)
    file = beat_path(tmp_path, "actor")
    file.unlink()
    future: Future = Future()
    Thread(target=end_once_there, args=(future, file)).start()
    heartbeat.wait_for([future])


def end_once_there(future: Future, file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)
    future.set_result(None)


def test_a_process_that_hangs_writes_its_stacks_to_its_log(tmp_path):
    command = [sys.executable, "-c", HANGS, str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stderr.readline, "")
        assert any("hang_here" in line for line in lines)
    finally:
        process.kill()
        process.communicate()


def test_a_wait_with_a_limit_beats_from_another_thread_until_its_limit(tmp_path):
    heartbeat = Heartbeat(tmp_path, "actor", silence_s=600, clock=lambda: 7.0)
    for longest_s, beats in ((60.0, True), (0.0, False)):
        beat_path(tmp_path, "actor").unlink()
        in_a_thread(heartbeat.of_wait(longest_s))
        assert beat_path(tmp_path, "actor").exists() == beats
        beat_path(tmp_path, "actor").touch()


def test_a_disk_that_fails_costs_a_beat_and_no_worker(tmp_path):
    heartbeat = Heartbeat(tmp_path, "actor", silence_s=600)
    beat_path(tmp_path, "actor").unlink()
    beat_path(tmp_path, "actor").parent.rmdir()
    heartbeat.of_wait(60.0)()
    assert not beat_path(tmp_path, "actor").exists()
