"""What `python -m extensions.viewer.records group` tells of recorded groups."""

import time
from pathlib import Path

import msgspec
import pytest

from contracts.records import (
    DropReason,
    Evaluated,
    MicroBatchRow,
    ServerJoined,
    Settled,
    Started,
    VersionSpan,
    unsampled,
)
from extensions.viewer.records.group_history import read_history
from extensions.viewer.records.group_story import story_lines
from extensions.viewer.records.group_words import describe_drop, describe_sequence
from pipelinerl.batching.sequences import training_sequences
from pipelinerl.paths import ROOT
from pipelinerl.streams.drop_reasons import MEANINGS
from pipelinerl.streams.events import FRESH_RUN
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.extensions.viewer.browser.poison import byte_level_tokenizer
from tests.extensions.viewer.test_show import refused, shown
from tests.streams.records import sequence

RECORDED = ROOT / "tests" / "data" / "recorded_run"
BEGAN = 1_800_000_000.0


def story(run_dir: Path, group: int) -> list[str]:
    return shown("group", run_dir, group).splitlines()


def start(group: int, draw: int, at: float) -> Started:
    return Started(group_id=group, rollouts=4, draw=draw, problem=9, version=1, at=BEGAN + at)


@pytest.fixture
def streams(tmp_path) -> FileStreams:
    streams = FileStreams(tmp_path / "streams")
    server = {"name": "server-0", "url": "http://a", "node": "here", "engine": "scripted"}
    streams.writer("launcher_events").append(ServerJoined(**server, at=BEGAN))
    return streams


def test_a_trained_group_is_told_with_its_advantages_and_the_members_that_are_not_in_the_loss(
    tmp_path, streams
):
    events, rollouts, rows, trainer = map(
        streams.writer, ("actor_events", "rollouts", "rows", "trainer_events")
    )
    events.append(start(0, draw=0, at=0.5))
    events.append(start(1, draw=1, at=1.5))
    answer = completion([1], [2, 3], spans=[VersionSpan(0, 0, 1), VersionSpan(1, 1, 2)], server="http://a")
    ends = {"started_at": BEGAN + 1.5, "finished_at": BEGAN + 3.25, "completions": [answer]}
    rollouts.append(rollout(1, 0, reward=1.0, **ends))
    rollouts.append(rollout(1, 1, status="truncated", **ends))
    rollouts.append(rollout(1, 2, status="failed:timeout", **ends | {"completions": []}))
    rollouts.append(rollout(1, 3, **ends))
    shares = [
        [sequence("0-0", [0], [True], 9.0), sequence("1-0", [0, 1], [False, True], 0.75)],
        [sequence("0-1", [0], [True], 9.0)],
    ]
    rows.append(MicroBatchRow(step=2, index=0, micro_batches=shares, closes_step=False, masked_tokens=1))
    shares = [[], [sequence("1-3", [0, 1], [False, False], -0.25)]]
    closing = {"closes_step": True, "group_ids": [0, 1], "masked": {"overlong": ["1-1", "0-2"]}}
    rows.append(MicroBatchRow(step=2, index=1, micro_batches=shares, **closing))
    trainer.append(Settled(group_ids=[0, 1], rollouts=8, version=3, at=BEGAN + 5))
    began = time.strftime("%F %T", time.localtime(BEGAN))
    assert story(tmp_path, 1) == [
        f"group 1; seconds since the run began at {began}",
        "      +1.500 s  4 rollouts of problem 9 (d p) are started while version 1 is live: draw 1 of the "
        "sampler",
        "      +3.250 s  rollout 1-0 ends after 1.75 s: ok, reward 1, 2 tokens, weight versions 0, 1, on "
        "http://a",
        "      +3.250 s  rollout 1-1 ends after 1.75 s: truncated, reward 0, 2 tokens, weight versions 0, 1, "
        "on http://a",
        "      +3.250 s  rollout 1-2 ends after 1.75 s: failed:timeout, no reward, 0 tokens, weight versions "
        "none",
        "      +3.250 s  rollout 1-3 ends after 1.75 s: ok, reward 0, 2 tokens, weight versions 0, 1, on "
        "http://a",
        "                in row 0 of the step that begins with version 2, in the micro-batch of trainer rank "
        "0; "
        "on_stale=mask took 1 tokens out of this row",
        "                  1-0: advantage 0.75, 1 of 2 sampled tokens in the loss, lag 1",
        "                in row 1 of the step that begins with version 2, in the micro-batch of trainer rank "
        "1",
        "                  1-3: advantage -0.25, 0 of 2 sampled tokens in the loss, so it teaches nothing",
        "                  1-1: left out of the loss as overlong, it counts in the baseline alone",
        "                  1-2: in no row, since it failed: it has no part in the baseline either",
        "      +5.000 s  trained: its step made version 3",
    ]


def test_a_lost_group_and_the_one_that_has_its_draw_name_each_other(tmp_path, streams):
    events = streams.writer("actor_events")
    events.append(start(0, draw=5, at=1))
    lost = {"interrupted": [0], "next_group": 1, "draws": 6, "redraws": [(5, 9)]}
    ends = {"actor_events": events.end}
    resumed = msgspec.structs.replace(FRESH_RUN, at=BEGAN + 10, ends=ends, **lost)
    streams.writer("launcher_events").append(resumed)
    assert [line[16:] for line in story(tmp_path, 0)[2:]] == [
        "the run stops, and resumes from version 0",
        "  dropped as interrupted: it was in flight when the run stopped, or servers had failed a rollout of "
        "it; 0 of its 4 rollouts are recorded, which happens when all have ended",
        "  its problem is drawn again, but no group has started yet",
    ]
    events.append(start(1, draw=5, at=12))
    assert story(tmp_path, 0)[-1].endswith("its problem is drawn again as group 1")
    assert "draw 5 of the sampler, which group 0 had before it was lost" in story(tmp_path, 1)[1]
    assert story(tmp_path, 1)[-1].endswith("here the records end: it is in flight; 0 of its 4 rollouts are "
                                           "recorded, which happens when all have ended")  # fmt: skip


def test_a_group_whose_step_was_undone_is_told_in_order():
    told = [line[16:] for line in story(RECORDED, 30) if " rollout 30-" not in line and "  30-" not in line]
    assert told[2:] == [
        "in row 0 of the step that begins with version 3, in the micro-batch of trainer rank 0",
        "trained: its step made version 4",
        "the run stops, and resumes from version 3",
        "  version 4 is undone, and so is what it did with the group",
        "  replayed: it is complete, so it is trained on without being sampled again",
        "in row 0 of the step that begins with version 3, in the micro-batch of trainer rank 0",
        "trained: its step made version 4",
    ]


def test_a_resumption_that_leaves_a_group_alone_says_so():
    assert story(RECORDED, 3)[-1].endswith("resumes from version 3, which changes nothing for the group")
    assert "resumes" not in "".join(story(RECORDED, 87))  # it began after the resumption


@pytest.mark.parametrize("reason", [*DropReason, "boring"])
def test_every_reason_has_words(streams, reason):
    streams.writer("actor_events").append(start(0, draw=0, at=1))
    settled = Settled(group_ids=[0], rollouts=4, reason=reason, why="rollout 0-1")
    streams.writer("preprocessor_events").append(settled)
    assert describe_drop(reason).startswith(f"dropped as {reason}: ")
    assert (reason in MEANINGS) == (reason != "boring")
    assert [*story_lines(read_history(streams, 0))][-1].endswith(f"{describe_drop(reason)} (rollout 0-1)")


def test_what_could_control_the_terminal_is_escaped(tmp_path, streams):
    streams.writer("actor_events").append(start(0, draw=0, at=1))
    streams.writer("rollouts").append(rollout(0, problem_id="a\x1b[2J\nb\u202e"))
    assert "(d a\\x1b[2J\\nb\\u202e)" in story(tmp_path, 0)[1]


def test_prompt_and_answers_are_told_where_the_run_has_a_tokenizer(tmp_path, streams):
    byte_level_tokenizer(tmp_path / "model")
    (tmp_path / "config.yaml").write_text(f"model: {{path: {tmp_path / 'model'}}}")
    streams.writer("actor_events").append(start(0, draw=0, at=1))
    answer = b"x" * 200 + b"\x1b[2J\nis 4"
    made = completion([*b"2 + 2 = ?"], [*answer])
    streams.writer("rollouts").append(rollout(0, completions=[made]))
    _, _, prompt, _, answered, _ = story(tmp_path, 0)
    assert prompt.strip() == "prompt: 2 + 2 = ?"
    assert answered.strip() == f"“…{'x' * 110}\\x1b[2J is 4”"


def test_an_unknown_group_is_one_line(tmp_path, streams):
    assert refused("group", tmp_path, 3).endswith(f"no group 3 in {tmp_path}; there are: none yet")
    streams.writer("actor_events").append(
        Evaluated(version=0, problems=1, success=1, first_version=0, last_version=0)
    )
    assert refused("group", RECORDED, 96).endswith(f"no group 96 in {RECORDED}; there are: groups 0 to 95")
    assert "there is no run directory" in refused("group", tmp_path / "nothing", 3)


def test_an_answer_that_nobody_sampled_has_an_advantage_and_no_lag():
    pair = rollout(0, completions=[unsampled([1, 2], [3, 4]), unsampled([1, 2], [5])])
    chosen, rejected = training_sequences(pair, [1.0, -1.0])
    assert describe_sequence(chosen, step=7) == "advantage 1, 2 tokens, none sampled, in the loss"
    assert describe_sequence(rejected, step=7) == "advantage -1, 1 tokens, none sampled, in the loss"
