"""What a viewer sends of a run under way, and what becomes of it when the run or the viewer ends."""

import json
import os
import signal
from http.client import HTTPResponse

import pytest

from tests.extensions.viewer.recorded_run import RecordedRun, member_of
from tests.extensions.viewer.viewers import viewing


@pytest.fixture
def run(tmp_path) -> RecordedRun:
    """A run whose launcher is alive, which is this process, after one step."""
    run = RecordedRun(tmp_path / "run")
    run.begin()
    step(run, 0)
    return run


def step(run: RecordedRun, version: int) -> None:
    run.step(
        version, [[member_of(version, member, version, float(member)) for member in range(2)]], trained=1
    )


def events(answer: HTTPResponse, until: str, count: int = 1) -> list[dict]:
    """Reads events until so many of one name have come."""
    found = []
    event = {}
    while sum(event["event"] == until for event in found) < count:
        line = answer.readline().decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if name in ("event", "id"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)
        elif not line and "event" in event:
            found.append(event)
            event = {}
    return found


def points(found: list[dict], chart: str) -> list[list[float]]:
    return [
        p for e in found if e["event"] == "points" for p in e["data"]["charts"].get(chart, {}).get(chart, [])
    ]


def test_new_steps_come_by_themselves_each_once_also_after_a_lost_connection(run):
    with viewing(run.run_dir) as viewer:
        state = viewer.get("runs/run")
        assert (state["state"], state["step"]) == ("running", 1)
        stream = viewer.ask(f"/api/runs/run/stream?from={state['stream_from']}", Cookie=viewer.cookie)
        assert events(stream, "run")[-1]["data"]["step"] == 1
        step(run, 1)
        found = events(stream, "run")
        assert found[-1]["data"]["step"] == 2
        found = [event for event in found if event["event"] == "points"] or events(stream, "points")
        assert points(found, "entropy") == [[2, 0.5]]
        stream.close()
        step(run, 2)
        step(run, 3)
        headers = {"Cookie": viewer.cookie, "Last_Event_ID": found[-1]["id"]}
        again = viewer.ask(f"/api/runs/run/stream?from={state['stream_from']}", **headers)
        assert points(events(again, "points"), "entropy") == [[3, 1 / 3], [4, 0.25]]


def test_the_stream_ends_with_the_run(run):
    with viewing(run.run_dir) as viewer:
        stream = viewer.ask("/api/runs/run/stream", Cookie=viewer.cookie)
        run.end(1)
        found = events(stream, "ended")
        assert found[-2]["data"]["state"] == "ended"
        assert viewer.get("runs/run")["state"] == "ended"


def test_a_viewer_that_ends_with_its_run_keeps_its_address_when_it_is_started_again(run):
    file = run.run_dir / "view" / "url"
    with viewing(run.run_dir, "--end-with-run") as viewer:
        assert file.read_text() == viewer.url and file.stat().st_mode & 0o777 == 0o600
        os.kill(viewer.process.pid, signal.SIGKILL)
        viewer.process.wait()
        with viewing(run.run_dir, "--end-with-run") as again:
            assert again.url == viewer.url
            run.end(1)
            assert again.process.wait() == 0
