"""`python -m extensions.viewer.parquet`: what it writes is what the run recorded, or nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import load_dataset

from benchmarks.ledger import ledger_of
from contracts.records import Record, Rollout, Settled, Started, VersionSpan
from extensions.redis_streams.streams import RedisStreams
from extensions.viewer.parquet import export_rollouts, main
from pipelinerl.paths import ROOT
from pipelinerl.streams.events import recorded
from pipelinerl.streams.files import FileStreams
from pipelinerl.streams.of_run import recorded_streams
from pipelinerl.streams.run_directory import InvalidInputError
from tests.builders import completion, rollout
from tests.extensions.viewer.browser.poison import byte_level_tokenizer

RECORDED = ROOT / "tests" / "data" / "recorded_run"  # a run that was stopped, resumed, and stopped again


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "extensions.viewer.parquet", *map(str, arguments)]


@pytest.fixture
def parquet(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """A function that runs the command here, and returns its status, its stdout and its stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["parquet", *map(str, arguments)])
        capsys.readouterr()
        return main(), *capsys.readouterr()

    return run


def records(run_dir: Path, name: str) -> list[Record]:
    with recorded_streams(run_dir) as streams:
        return list(recorded(streams, name))


def test_the_data_set_is_what_the_run_recorded(tmp_path, parquet):
    said = f"rollouts in {tmp_path / 'out'}: train 352, held_out 48\n"
    assert parquet(RECORDED, "--out", tmp_path / "out") == (0, said, "")
    splits = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for split, stream in [("train", "rollouts"), ("held_out", "eval_rollouts")]:
        recorded_ones = records(RECORDED, stream)
        assert len(splits[split]) == len(recorded_ones) > 0
        for row, record in zip(splits[split], recorded_ones, strict=True):
            assert_equal(row, record)
        files = {"train": str(tmp_path / "out" / split / "*.parquet")}
        alone = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
        assert alone.to_list() == splits[split].to_list()
        assert len(pandas.read_parquet(tmp_path / "out" / split)) == len(recorded_ones)


def assert_equal(row: dict, record: Rollout) -> None:
    plain = ("run", "rollout_id", "group_id", "problem_id", "domain", "draw", "status", "reward")
    for name in (*plain, "started_at", "finished_at", "turn_rewards", "sampled_tokens"):
        assert row[name] == getattr(record, name)
    assert by_name(row["metrics"]) == record.metrics
    assert by_name(row["reward_components"]) == record.reward_components
    assert row["success"] == record.success
    assert (row["first_version"], row["last_version"]) == (min(record.versions), max(record.versions))
    for columns, of in zip(row["completions"], record.completions, strict=True):
        assert columns["prompt_token_ids"] == of.prompt_token_ids.tolist()
        assert columns["token_ids"] == of.token_ids.tolist()
        assert columns["logprobs"] == of.logprobs.tolist()
        assert len(columns["logprobs"]) == len(columns["token_ids"])
        spans = [VersionSpan(**span) for span in columns["spans"]]
        assert spans == of.spans
        for name in ("temperature", "finish_reason", "server", "segments", "began", "ended"):
            assert columns[name] == getattr(of, name)


def by_name(values: list[dict]) -> dict[str, float]:
    return {entry["name"]: entry["value"] for entry in values}


def test_outcomes_are_those_of_the_ledger(tmp_path):
    export_rollouts(RECORDED, tmp_path / "out")
    train = pandas.read_parquet(tmp_path / "out" / "train")
    found: dict[str, set[int]] = {}
    for row in train.itertuples():
        how = row.outcome_reason if row.outcome == "dropped" else row.outcome.replace("_", " ")
        found.setdefault(how, set()).add(row.group_id)
    outcomes = ledger_of(RECORDED).outcomes
    assert found == {how: groups & {*train.group_id} for how, groups in outcomes.items() if how in found}
    assert {"trained", "rolled_back", "in flight"} == found.keys()
    settled = [event for event in records(RECORDED, "trainer_events") if isinstance(event, Settled)]
    assert [event.version for event in settled] == [1, 2, 3, 4, 5, 4, 5]  # resumed from version 3
    for undone, again in zip(settled[3:5], settled[5:7], strict=True):
        assert {*train[train.trained_version == again.version].group_id} == {*again.group_ids}
        undone_ones = train[[list(versions) == [undone.version] for versions in train.undone_versions]]
        assert {*undone_ones.group_id} == {*undone.group_ids}
    assert (train.undone_versions.map(len) > 0).sum() == 2 * 32
    assert pandas.read_parquet(tmp_path / "out" / "held_out").outcome.isna().all()


HOSTILE = {
    b"a\0b": "a\0b",
    b"\xed\xa0\x80": "\ufffd" * 3,  # a lone surrogate
    b"\xff\xc3": "\ufffd" * 2,
    '</script>,"\n\x1b[2J\u202e=1+1'.encode(): '</script>,"\n\x1b[2J\u202e=1+1',
}


def test_hostile_text_survives(tmp_path):
    byte_level_tokenizer(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"path": str(tmp_path)}}))
    writer = FileStreams(tmp_path / "streams").writer("rollouts")
    names = {"problem_id": "p\0\n\u202e", "domain": "---\n", "status": 'failed:",\0'}
    fields = {"mark": np.array([1.5], dtype=np.float32), "tool": np.array([True])}
    for group, sampled in enumerate(HOSTILE):
        writer.append(rollout(group, completions=[completion(list(sampled), list(sampled))], **names))
    writer.append(rollout(9, completions=[completion([], [1], token_fields=fields)]))
    export_rollouts(tmp_path, tmp_path / "out")
    rows = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"].to_list()
    for row, (sampled, text) in zip(rows, HOSTILE.items(), strict=False):
        assert {name: row[name] for name in names} == names
        (columns,) = row["completions"]
        assert (columns["prompt"], columns["text"]) == (text, text)
        assert columns["token_ids"] == list(sampled)
    (columns,) = rows[-1]["completions"]
    assert columns["token_fields"] == [{"name": "mark", "values": [1.5]}, {"name": "tool", "values": [1.0]}]


def test_a_run_that_is_running_is_copied_as_far_as_it_is_recorded(tmp_path, parquet):
    streams = FileStreams(tmp_path / "streams")
    rollouts, events = streams.writer("rollouts"), streams.writer("actor_events")
    said = f"extensions.viewer.parquet: {tmp_path} has recorded no rollouts yet\n"
    assert parquet(tmp_path, "--out", tmp_path / "out") == (1, "", said)
    for group in range(2):
        events.append(Started(group_id=group, rollouts=1, draw=group, problem=0))
        rollouts.append(rollout(group))
    events.append(Settled(group_ids=[1], rollouts=1, reason="boring"))
    (tmp_path / "out").mkdir()
    (split,) = export_rollouts(tmp_path, tmp_path / "out")
    rollouts.append(rollout(2))  # its writer is alive
    assert split.rows == 2
    train = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"]
    assert train["outcome"][:] == ["in_flight", "dropped"] and train["outcome_reason"][:] == [None, "boring"]
    assert train["success"][:] == [None, None]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out", "streams"]


@pytest.mark.engines  # it needs redis-server
def test_a_run_on_redis_is_copied_too(tmp_path, redis_url):
    streams = RedisStreams(redis_url, tmp_path.name)
    streams.writer("rollouts").append(rollout(0))
    saved = {"streams": {"backend": "redis", "url": redis_url, "run": tmp_path.name}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    (split,) = export_rollouts(tmp_path, tmp_path / "out")
    assert (split.name, split.rows) == ("train", 1)


def test_row_groups_and_shards_have_bounded_sizes(tmp_path):
    export_rollouts(RECORDED, tmp_path / "out", row_group_bytes=100_000, shard_bytes=20_000)
    shards = sorted((tmp_path / "out" / "train").iterdir())
    assert [shard.name for shard in shards] == [f"{number:05d}.parquet" for number in range(len(shards))]
    assert len(shards) > 1 and all(shard.stat().st_size < 60_000 for shard in shards)
    groups = [pq.ParquetFile(shard).metadata for shard in shards]
    rows = [file.row_group(i).num_rows for file in groups for i in range(file.num_row_groups)]
    assert max(rows) < 50 and sum(rows) == 352 and len(rows) > len(shards)
    ids = [row["rollout_id"] for row in pq.read_table(tmp_path / "out" / "train").to_pylist()]
    assert ids == [record.rollout_id for record in records(RECORDED, "rollouts")]


def test_a_killed_export_leaves_nothing_that_looks_complete(tmp_path, parquet):
    run_dir, out = tmp_path / "run", tmp_path / "out"
    writer = FileStreams(run_dir / "streams").writer("rollouts")
    for group in range(5_000):
        writer.append(rollout(group))
    process = subprocess.Popen(command(run_dir, "--out", out), cwd=ROOT)
    while not (left := list(tmp_path.glob(".out.*.partial"))):
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not out.exists() and left[0].name == f".out.{process.pid}.partial"
    assert parquet(run_dir, "--out", out)[0] == 0
    assert len(pandas.read_parquet(out / "train")) == 5_000


def test_what_cannot_be_is_refused_in_one_line(tmp_path, parquet):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for full in (tmp_path / "full", tmp_path / "full" / "mine"):
        with pytest.raises(InvalidInputError, match=f"{full} exists and is never overwritten; choose a new"):
            export_rollouts(RECORDED, full)
    status, out, said = parquet(tmp_path / "full", "--out", tmp_path / "out")
    assert (status, out, said.count("\n")) == (1, "", 1) and str(tmp_path / "full") in said
    assert not (tmp_path / "out").exists()
