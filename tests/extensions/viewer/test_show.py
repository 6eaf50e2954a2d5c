"""`python -m extensions.viewer.records`: what a person sees of the records, and of a mistyped command."""

import subprocess
import sys
import time

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from contracts.records import (
    DropReason,
    Evaluated,
    MicroBatchRow,
    Settled,
    Started,
    StepClosed,
    VersionSpan,
)
from extensions.viewer.records.show import describe_completion, text_of
from pipelinerl.paths import ROOT
from pipelinerl.streams.files import FileStreams
from tests.builders import completion, rollout
from tests.streams.records import sequence


def streams_command(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "extensions.viewer.records", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def shown(*arguments) -> str:
    done = streams_command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments) -> str:
    """The one line on stderr."""
    done = streams_command(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    streams = FileStreams(path / "streams")
    rollouts, rows, events = (streams.writer(name) for name in ("rollouts", "rows", "actor_events"))
    for group_id in range(5):
        events.append(Started(group_id=group_id, rollouts=2, draw=group_id, problem=0))
        spans = [VersionSpan(group_id, 0, 2), VersionSpan(group_id + 3, 2, 3)]
        answer = completion([40, 41], [50, 51, 52], spans=spans)
        parts = {"correct": 0.75, "format": 0.25}
        rollouts.append(rollout(group_id, 0, 1.0, reward_components=parts, completions=[answer]))
        rollouts.append(rollout(group_id, 1, completions=[], status="failed:timeout"))
    events.append(Settled(group_ids=[2, 3], rollouts=4, reason=DropReason.ZERO_ADVANTAGE))
    events.append(StepClosed(version=1, rollouts=4, tokens=9, lag_histogram={0: 4, 2: 5}))
    micro_batches = [[sequence("3-0", [5, 6], [True, True], 0.0), sequence("4-0", [6], [True], 0.0)], []]
    values = {"micro_batches": micro_batches}
    rows.append(MicroBatchRow(step=7, index=0, closes_step=False, **values))
    values["reference_version"] = 6
    rows.append(MicroBatchRow(step=7, index=1, closes_step=True, group_ids=[3, 4, 1], **values))
    rows.append(MicroBatchRow(step=8, index=0, closes_step=False, micro_batches=[[], []]))
    (path / "config.yaml").write_text("model:\n  path: null\n")
    return path


def test_rollouts_show_tokens_reward_versions_and_status(run_dir):
    text = shown("show", run_dir, "rollouts", "--group", 2)
    for part in (
        "rollout 2-0  group 2",
        "reward 1 (correct 0.75  format 0.25)",
        "weight versions 2, 5",
        "v2: 0–2  v5: 2–3",
        "      40 41\n",
        "      50 51 52\n",
        "status failed:timeout",
        "expected not recorded",
    ):
        assert part in text
    assert text.count("── rollout") == 2


def test_rollouts_are_decoded_by_the_tokenizer_of_the_run(tmp_path):
    words = {"1 + 2": 0, " =": 1, "<eos>": 2, "the sum\nis ": 3, "3": 4}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.yaml").write_text(f"model:\n  path: {tmp_path}\n")
    writer = FileStreams(tmp_path / "streams").writer("rollouts")
    why = {"expected": "3", "reason": "right; answer read: 3"}
    writer.append(rollout(0, completions=[completion([0, 1], [3, 4, 2])], **why))
    text = shown("show", tmp_path, "rollouts")
    assert "      1 + 2 =\n" in text
    assert "      the sum\n      is 3<eos>\n" in text
    assert "   expected 3\n   reason right; answer read: 3\n" in text


GONE = "the rollouts of the evaluation of version 20 are not here any more"


def test_answers_to_held_out_problems_before_and_after(run_dir, tmp_path):
    streams = FileStreams(tmp_path / "streams")
    rollouts, events = streams.writer("eval_rollouts"), streams.writer("actor_events")
    spans = [VersionSpan(9, 0, 1), VersionSpan(11, 1, 3)]
    for version, sampled, success in (
        (0, [completion([1], [7, 8])], 0.0),
        (5, [completion([1], [9], 5)], 1.0),
        (10, [completion([1], [7, 8, 9], spans=spans)], 1.0),
        (15, [completion([1], [6], 15)], 1.0),  # which has not ended
    ):
        for problem in ("sum/1 + 2", "sum/3 + 4", f"only in {version}"):
            changes = {"problem_id": problem, "success": success, "completions": sampled}
            rollouts.append(rollout(0, rollout_id=f"eval-{version}-0-0", **changes))
            rollouts.append(rollout(0, rollout_id=f"eval-{version}-0-1", problem_id=problem))
        empty = [completion([1], [], spans=[])]  # interrupted before its first token
        rollouts.append(rollout(0, rollout_id=f"eval-{version}-1-0", problem_id="cut", completions=empty))
        if version < 15:
            ends = {"first_version": version, "last_version": version}
            events.append(Evaluated(version=version, problems=3, success=success, **ends))
    (tmp_path / "config.yaml").write_text("model:\n  path: null\n")
    head = "the run's tokenizer is not here, so token ids are shown"
    answers = ["   1", "   version 0        wrong  7 8", "   version 9 to 11  right  7 8 9"]
    assert shown("answers", tmp_path).splitlines() == [head, "sum/1 + 2", *answers, "sum/3 + 4", *answers]
    assert shown("answers", tmp_path, "--problems", 1).splitlines() == [head, "sum/1 + 2", *answers]
    last = {"first_version": 20, "last_version": 20}
    events.append(Evaluated(version=20, problems=3, success=1, **last))
    assert shown("answers", tmp_path).splitlines() == [GONE]
    assert shown("answers", run_dir) == "no evaluation has ended yet\n"


def test_tail_takes_the_last_records(run_dir):
    text = shown("show", run_dir, "rollouts", "--tail", 3)
    assert [line.split()[2] for line in text.splitlines() if "── rollout" in line] == ["3-1", "4-0", "4-1"]


def test_rows_are_one_line_each_with_lag(run_dir):
    first, closing, empty = shown("show", run_dir, "rows").splitlines()
    assert first == "step 7  row 0  sequences [2 0]  tokens [7 0]  in the loss 3  lag mean 1.33 max 2"
    assert closing.endswith("closes the step of groups [3 4 1]  reference version 6")
    assert empty.endswith("in the loss 0  no token in the loss")
    assert len(shown("show", run_dir, "rows", "--group", 4).splitlines()) == 2
    assert len(shown("show", run_dir, "rows", "--group", 1).splitlines()) == 1


def test_events_are_one_line_each_with_their_fields(run_dir):
    *started, settled, closed = shown("show", run_dir, "actor_events").splitlines()
    assert all(time.strptime(line.split("  at ")[1], "%Y-%m-%d %H:%M:%S") for line in started)
    assert [line.split("  at ")[0].split() for line in started] == [
        ["Started", f"group_id={n}", "rollouts=2", f"draw={n}", "problem=0", "version=0"] for n in range(5)
    ]
    assert settled.split("  at ")[0].split()[1:] == [
        "group_ids=[2",
        "3]",
        "rollouts=4",
        "reason=zero_advantage",
        "why=",
        "version=None",
    ]
    assert "tokens=9  lag_histogram={0:4 2:5}  skipped=False" in closed
    assert len(shown("show", run_dir, "actor_events", "--group", 2).splitlines()) == 2


def test_a_trimmed_stream_is_shown_from_what_is_kept(tmp_path):
    writer = FileStreams(tmp_path / "streams", segment_bytes=100).writer("actor_events")
    offsets = [
        writer.append(Started(group_id=group_id, rollouts=2, draw=group_id, problem=0))
        for group_id in range(9)
    ]
    writer.trim(offsets[5])
    assert shown("show", tmp_path, "actor_events").splitlines()[-1].split()[1] == "group_id=8"
    assert f"(what lay before offset {offsets[5]} is trimmed)" in shown("list", tmp_path)


def test_the_token_fields_of_a_completion_are_named():
    fields = {"confidence": np.zeros(1, dtype=np.float32), "tool": np.zeros(1, dtype=np.uint8)}
    shown_completion = describe_completion(completion([1], [2], token_fields=fields), None)
    assert "(1 tokens, stop; v0: 0–1; with confidence, tool)" in shown_completion
    assert "with" not in describe_completion(completion([1], [2]), None)


def test_what_could_move_the_cursor_is_shown_not_obeyed():
    clear_screen = {"a\x1b[2Jb\rc\nd": 7}
    tokenizer = Tokenizer(WordLevel(clear_screen, unk_token="?"))
    assert text_of(np.array([7]), tokenizer) == "      a\\x1b[2Jb\\rc\n      d"


def test_bad_input_is_one_line_that_names_what_exists(run_dir, tmp_path):
    assert refused("show", run_dir, "rolouts").endswith("there are: actor_events, rollouts, rows")
    assert str(run_dir.parent / "nothing") in refused("list", run_dir.parent / "nothing")
    assert run_dir.name in refused("list", run_dir.parent / "nothing")
    assert "has no streams/" in refused("show", tmp_path, "rollouts")
    assert "there is no run directory" in refused("list", tmp_path / "no" / "such" / "run")
    (tmp_path / "streams").mkdir()
    assert refused("show", tmp_path, "rollouts").endswith("there are: none yet")


def test_a_reader_that_has_seen_enough_is_no_error(run_dir):
    command = f"{sys.executable} -m extensions.viewer.records show {run_dir} rollouts | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
