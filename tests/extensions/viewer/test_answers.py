"""What the viewer answers is what the records say."""

import msgspec
import numpy as np
import pytest

from contracts.records import Settled, Started, StepClosed, VersionSpan
from extensions.viewer.answers import timeline
from extensions.viewer.index.loads import loads_of
from extensions.viewer.index.slim import SlimCompletion
from extensions.viewer.runs.directory import Runs
from tests.builders import completion
from tests.extensions.viewer.recorded_run import (
    BEGIN,
    SERVERS,
    STEP_S,
    RecordedRun,
    member_of,
    sequence_of,
)
from tests.extensions.viewer.viewers import viewing

RUN = "runs/a-run"


def links(viewer) -> list[str]:
    """The training rollouts, in the order of their records."""
    rows = viewer.get(f"{RUN}/rollouts?sort=newest")["rows"]
    assert len(rows) == 32
    return [row["r"] for row in reversed(rows)]


def test_each_token_has_what_its_record_says_of_it(viewer, records):
    for link, record in zip(links(viewer), records, strict=True):
        answer = viewer.get(f"{RUN}/rollouts/{link}")
        assert answer["id"] == record.rollout_id and answer["metrics"] == record.metrics
        assert (answer["expected"], answer["why"]) == (record.expected, record.reason)
        (made,) = answer["completions"]
        (completion,) = record.completions
        assert made["ids"] == completion.token_ids.tolist()
        np.testing.assert_allclose(made["logprobs"], completion.logprobs, rtol=1e-6)
        assert "".join(text for text, _, _ in made["pieces"]) == "4 5 6 7 8 9 "  # there is no tokenizer
        first = completion.spans[0].version
        assert made["versions"] == [first, first, *[first + 1] * 4]
        is_trained = record.group_id % 2 == 0
        assert made["lags"] == ([0, 0, -1, -1, -1, -1] if is_trained else None)
        assert made["advantages"] == ([record.reward - 0.5] * 6 if is_trained else None)
        assert made["in_loss"] == ([True] * 6 if is_trained else None)
        assert (answer["reason"] is None) == is_trained and bool(answer["reason_means"]) != is_trained


def test_the_timeline_has_each_request_where_it_was(viewer, records):
    answer = viewer.get(f"{RUN}/timeline?began={BEGIN}&ended={BEGIN + 100}")
    servers = {track["process"]: track["rows"] for track in answer["tracks"] if track["kind"] == "server"}
    assert servers.keys() == {"server-0", "server-1"} and not answer["is_merged"]
    bars = {(name, bar["id"]): bar for name, rows in servers.items() for row in rows for bar in row}
    assert len(bars) == len(records)
    for record in records:
        (made,) = record.completions
        bar = bars[f"server-{SERVERS.index(made.server)}", record.rollout_id]
        assert (bar["t"], bar["e"]) == (made.began, made.ended)
        first = made.spans[0].version
        live = BEGIN + STEP_S * (first + 1)  # half a second after the publication began
        border = pytest.approx((min(max(made.began + 2, live - 0.5), live) - made.began) / 6)
        assert bar["v"] == [[first, 0, border], [first + 1, border, 1]]
    for rows in servers.values():
        for row in rows:
            assert all(a["e"] <= b["t"] for a, b in zip(row, row[1:], strict=False))
    assert [event["version"] for event in answer["published"]] == [0, 1, 2, 3, 4]


def test_many_requests_are_merged_by_server_second_and_version(viewer, records, monkeypatch, runs_directory):
    run = Runs(runs_directory).get("a-run")
    run.following.wait_until_read()
    monkeypatch.setattr(timeline, "MOST", len(records) - 1)
    monkeypatch.setattr(timeline, "BINS", 25)
    answer = timeline.timeline(run, BEGIN, BEGIN + 50)
    run.close()
    assert answer["is_merged"]
    loads = {track["process"]: track for track in answer["tracks"] if track["kind"] == "load"}
    assert loads.keys() == {"server-0", "server-1"}
    for server, track in enumerate(loads.values()):
        assert track["width"] == 2  # seconds
        busy = {}
        for _, versions in track["bins"]:
            for version, at_a_time in versions:
                busy[version] = busy.get(version, 0) + at_a_time * track["width"]
        of_server = [
            made for record in records for made in record.completions if made.server == SERVERS[server]
        ]
        spans = [span for made in of_server for span in made.spans]
        # 6 tokens in 6 seconds
        assert busy == {v: sum(s.end - s.start for s in spans if s.version == v) for v in range(5)}


def test_requests_with_times_that_cannot_be_are_left_out():
    times = [(-5.5, -4.5), (5.0, 6.0), (1e20, 1e20 + 1), (BEGIN, BEGIN - 1), (BEGIN + 0.5, BEGIN + 61.5)]
    requests = [SlimCompletion([VersionSpan(0, 0, 4)], "a", began, ended) for began, ended in times]
    loads = loads_of(requests)
    seconds = {second: busy for length, second, _, _, busy in loads if length == 1}
    minutes = {second: busy for length, second, _, _, busy in loads if length == 60}
    assert seconds.pop(5) == 1 and minutes.pop(0) == pytest.approx(1)
    assert min(seconds) == BEGIN and len(seconds) == 62
    assert sum(seconds.values()) == pytest.approx(61) and sum(minutes.values()) == pytest.approx(61)


def test_the_timeline_opens_where_requests_cross_an_update(viewer):
    answer = viewer.get(f"{RUN}/timeline")
    # All of the last requests end with version 4, and take 6 seconds.
    assert (answer["began"], answer["ended"]) == (BEGIN + 4 * STEP_S - 18, BEGIN + 4 * STEP_S + 18)


def test_groups_with_different_rewards_are_listed_first_with_prompt_and_answer(viewer):
    rows = viewer.get(f"{RUN}/rollouts")["rows"]
    assert [row["group"] for row in rows[::4]] == [6, 4, 2, 0, 7, 5, 3, 1]
    assert {(row["asked"], row["answered"]) for row in rows} == {("1 2 3", "4 5 6 7 8 9")}


def test_the_trainers_spans_are_beside_the_requests(viewer):
    answer = viewer.get(f"{RUN}/timeline?began={BEGIN}&ended={BEGIN + STEP_S}")
    (trainer,) = [track for track in answer["tracks"] if track["process"] == "trainer-0"]
    (row,) = trainer["rows"]
    assert [(span["n"], span["depth"]) for span in row] == [
        ("wait", 0),
        ("learn", 0),
        ("publish", 0),
        ("open", 1),
    ]
    covered = sum(span["e"] - span["t"] for span in row if not span["depth"])
    assert covered >= 0.9 * STEP_S
    assert row[1]["f"] == {"step": 0}


def test_the_run_says_where_it_is(viewer):
    answer = viewer.get(RUN)
    assert (answer["state"], answer["step"], answer["max_steps"]) == ("ended", 4, 4)
    assert answer["headline"] == "learned 0.25 → 1.00 held-out success in 4 steps; ended"
    assert (answer["live_version"], answer["servers_alive"]) == (4, 0)
    (of_set,) = answer["evaluations"]
    assert (of_set["first"], of_set["best"], of_set["best_version"], of_set["last"]) == (0.25, 1.0, 4, 1.0)
    assert "4: zero_advantage (all rewards equal)" in answer["drops"]
    tiles = {tile["name"]: tile["value"] for tile in answer["tiles"]}
    assert tiles["held-out success"] == 1.0 and tiles["lag, versions"] is None
    assert answer["indexed"]["is_complete"]


def test_charts_have_each_metric_once(viewer):
    answer = viewer.get(f"{RUN}/charts")
    charts = {chart["id"]: chart for chart in answer["charts"]}
    success = {line["name"]: line["points"] for line in charts["success"]["series"]}
    assert success["held-out"] == [[0, 0.25], [4, 1.0]]
    assert charts["entropy"]["series"][0]["points"] == [[step, 1 / step] for step in range(1, 5)]
    assert charts["actor/places_busy"]["is_further"] and not charts["entropy"]["is_further"]
    waits = {line["name"]: line["points"] for line in charts["time"]["series"]}["wait for rollouts"]
    assert waits == [[step, 0.4] for step in range(1, 5)]


def test_the_account_of_groups_holds(viewer):
    answer = viewer.get(f"{RUN}/accounting")
    assert answer["holds"] and answer["errors"] == []
    assert answer["groups"] == {"started": 8, "trained": 4, "in_flight": 0, "dropped": {"zero_advantage": 4}}
    assert answer["rollouts"]["started"] == 32
    assert [of["trained"] for of in answer["by_version"]] == [1, 1, 1, 1]
    assert answer["reasons"]["zero_advantage"]["brief"] == "all rewards equal"


def test_a_group_has_its_members_side_by_side(viewer):
    answer = viewer.get(f"{RUN}/groups/2")
    assert (answer["outcome"], answer["trained_version"], answer["version"]) == ("trained", 2, 1)
    assert [member["reward"] for member in answer["members"]] == [0, 1, 0, 1]
    assert [member["text"] for member in answer["members"]] == ["4 5 6 7 8 9"] * 4
    assert [member["why"] for member in answer["members"]] == ["wrong", "right"] * 2
    assert answer["expected"] == "9"
    assert (answer["previous"], answer["next"], answer["prompt"]) == (1, 3, [["1 2 3", False]])
    assert viewer.get(f"{RUN}/groups/7")["next"] is None
    lines = viewer.get(f"{RUN}/groups/2/story")["lines"]
    assert lines[0].startswith("group 2;") and "trained: its step made version 2" in lines[-1]


def test_servers_are_listed_with_what_they_did(viewer):
    answer = viewer.get(f"{RUN}/servers")
    assert {server["name"] for server in answer["servers"]} == {"server-0", "server-1"}
    for server in answer["servers"]:
        assert (server["state"], server["version"]) == ("left: the run ended", 4)
        assert (server["requests"], server["tokens"], server["aborted"]) == (16, 96, 0)


def test_the_list_of_runs_leaves_out_what_is_no_run(viewer):
    (run,) = viewer.get("runs")
    assert (run["name"], run["state"], run["step"], run["heldout_last"]) == ("a-run", "ended", 4, 1.0)


def test_a_rollout_in_two_rows_of_its_step_is_read_from_both(tmp_path):
    run = RecordedRun(tmp_path / "runs" / "split")
    run.begin()
    first = member_of(0, 0, 0, 1.0)
    other = completion([7], [8, 9, 8], spans=[VersionSpan(0, 0, 3)], server=SERVERS[0])
    both = msgspec.structs.replace(first, completions=[*first.completions, other])
    run.append("actor_events", Started(group_id=0, rollouts=1, draw=0, problem=0, version=0, at=BEGIN))
    run.append("rollouts", both)
    parts = [first, with_completion(first, other)]
    for made, advantages in enumerate([(7.0, 7.0), (0.5, -0.5)]):  # a resumed run makes the step again
        for number, (part, advantage) in enumerate(zip(parts, advantages, strict=True)):
            row = run.row(0, [sequence_of(part, advantage)], [0] if made and number else [])
            run.append("rows", msgspec.structs.replace(row, index=number, closes_step=bool(made and number)))
    settled = Settled(group_ids=[0], rollouts=1, version=1)
    run.append("trainer_events", StepClosed(version=1, rollouts=1, tokens=9, lag_histogram={0: 9}), settled)
    run.end(1)
    with viewing(tmp_path / "runs") as viewer:
        (row,) = viewer.get("runs/split/rollouts")["rows"]
        answer = viewer.get(f"runs/split/rollouts/{row['r']}")
    assert [made["in_loss"] for made in answer["completions"]] == [[True] * 6, [True] * 3]
    assert (answer["training"]["tokens_in_loss"], answer["training"]["row"]) == (9, 0)
    assert row["advantage"] == pytest.approx((6 * 0.5 - 3 * 0.5) / 9)


def with_completion(rollout, made):
    return msgspec.structs.replace(rollout, completions=[made])
