"""The trace of a run: which slices there are, that they nest, and what the command says."""

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from msgspec.structs import replace

from contracts.records import VersionSpan
from extensions.viewer.trace import main
from extensions.viewer.tracks import Slice, nested, rows
from pipelinerl.spans import Spans
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.extensions.viewer.recorded_run import published

BEGIN = 99.5  # of the first publication, which is the earliest of all


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of 4 versions, 10 s apart, with two requests at a time, of which each crosses an update."""
    streams = FileStreams(tmp_path / "run" / "streams")
    events = streams.writer("trainer_events")
    rollouts = streams.writer("rollouts")
    trainer = Spans(tmp_path / "run", "trainer-0")
    actor = Spans(tmp_path / "run", "actor")
    for version in range(4):
        at = 100.0 + 10 * version
        events.append(published(version, at))
        across = [VersionSpan(version, 0, 1), VersionSpan(version + 1, 1, 4)]
        for member in range(2):
            times = {"began": at + 8 + member, "ended": at + 12 + member, "server": "a"}
            made = completion([1], [2, 3, 4, 5], spans=across, **times)
            rollouts.append(rollout(version, member, completions=[made]))
        trainer.add("open", at - 0.5, 0.1, version=version)
        trainer.add("send", at - 0.4, 0.400003, version=version)  # ends a little after what is around it
        trainer.add("publish", at - 0.5, 0.5, version=version)
        actor.add("places", at, 1.0, in_flight=2.0, capacity=4.0, blocked={"lag": 1.0})
    failed = {"started_at": 120.0, "finished_at": 121.0, "status": "failed:server_error"}
    rollouts.append(rollout(9, completions=[], **failed))
    return tmp_path / "run"


def traced(monkeypatch, run: Path, *arguments: str) -> dict[str, list[dict]]:
    """The events of the run's trace, by their kind."""
    out = run.parent / "trace.json.gz"
    monkeypatch.setattr(sys, "argv", ["trace", str(run), "--out", str(out), *arguments])
    assert main() == 0
    events = defaultdict(list)
    for event in json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]:
        events[event["ph"]].append(event)
    return events


def check_nesting(slices: list[dict]) -> None:
    """Fails unless the slices of each track begin in order, and lie within or after those before."""
    ends = defaultdict(list)
    last = {}
    for slice_ in slices:
        track = slice_["pid"], slice_["tid"]
        end = slice_["ts"] + slice_["dur"]
        assert slice_["ts"] >= last.get(track, 0) and slice_["dur"] >= 0
        last[track] = slice_["ts"]
        around = ends[track]
        while around and around[-1] <= slice_["ts"]:
            around.pop()
        assert not around or end <= around[-1], slice_
        around.append(end)


def test_slices_nest_and_have_the_times_and_facts_of_what_they_show(monkeypatch, run):
    events = traced(monkeypatch, run)
    check_nesting(events["X"])
    names = [slice_["name"] for slice_ in events["X"]]
    assert {f"{version}-{member}" for version in range(4) for member in range(2)} | {"9-0"} <= {*names}
    assert names.count("version 1") == 4  # two requests begin with it, and two go on with it
    assert names.count("send") == names.count("publish") == 4
    tracks = [event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"]
    assert sorted(tracks) == ["request 1", "request 2", "request 3", "trainer-0"]
    processes = [event["args"]["name"] for event in events["M"] if event["name"] == "process_name"]
    assert sorted(processes) == ["a", "actor", "no server", "trainer-0"]
    slices = events["X"]
    at = next(i for i, slice_ in enumerate(slices) if slice_["name"] == "1-0")
    request, *inner = slices[at : at + 3]
    assert (request["ts"], request["dur"]) == (round((118.0 - BEGIN) * 1e6), 4_000_000)
    assert request["args"]["group"] == 1 and request["args"]["sampled_tokens"] == 4
    assert [(s["name"], s["dur"]) for s in inner] == [("version 1", 1_000_000), ("version 2", 3_000_000)]
    assert [event["name"] for event in events["i"]] == [f"version {version} is live" for version in range(4)]
    assert [event["args"] for event in events["C"]] == [{"in_flight": 2.0, "capacity": 4.0}] * 4


def test_between_two_versions_it_has_what_touches_that_time(monkeypatch, run):
    events = traced(monkeypatch, run, "--versions", "1", "2")
    rollouts = {slice_["name"] for slice_ in events["X"] if "-" in slice_["name"]}
    assert rollouts == {"0-0", "0-1", "1-0", "1-1"}
    assert [event["name"] for event in events["i"]] == ["version 1 is live", "version 2 is live"]


def test_versions_that_a_resumption_undid_are_left_out(monkeypatch, run):
    streams = FileStreams(run / "streams")
    again = streams.writer("trainer_events")
    resumed = replace(FRESH_RUN, version=1, ends={"trainer_events": again.end})
    streams.writer("launcher_events").append(resumed)
    again.append(published(2, 300.0))
    events = traced(monkeypatch, run)
    lived = [(event["name"], event["ts"]) for event in events["i"]]
    at = [round((time - BEGIN) * 1e6) for time in (100.0, 110.0, 300.0)]
    assert lived == [(f"version {version} is live", at[version]) for version in range(3)]


def test_versions_that_were_not_published_are_refused(monkeypatch, run, capsys):
    monkeypatch.setattr(sys, "argv", ["trace", str(run), "--out", "x.json.gz", "--versions", "3", "9"])
    assert main() == 1
    assert "no time from version 3 to 9: 0 to 3 were published" in capsys.readouterr().err


def test_a_row_holds_one_request_at_a_time_of_one_server():
    def request(began: float, ended: float, server: str = "a"):
        return completion([1], [2, 3, 4, 5], began=began, ended=ended, server=server)

    first, beside, after = request(0, 4), request(1, 2), request(2, 3)
    elsewhere = request(5, 6, server="b")
    assert rows([elsewhere, after, first, beside]) == [[first], [beside, after], [elsewhere]]


def test_spans_that_overlap_are_on_tracks_of_their_own():
    first, across, within = Slice("first", 0, 4), Slice("across", 3, 6), Slice("within", 4, 5)
    tracks = nested("actor", [within, across, first])
    assert [(track.name, [slice_.name for slice_ in track.slices]) for track in tracks] == [
        ("actor", ["first", "within"]),
        ("actor 1", ["across"]),
    ]
