"""The trainer's kit on correct trainers, on ranks that fail, and as a command."""

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from contracts.conformance.table import kept
from contracts.conformance.trainer.command import add_trainer
from contracts.conformance.trainer.kit import GUARANTEES, check_trainer

ROOT = Path(__file__).parents[2]
CODES = [guarantee.code for guarantee in GUARANTEES]
FSDP = "trainer_adapters.fsdp.FSDPTrainer"
PLAIN = "examples.plain_trainer.PlainTrainer"


def assert_all_kept(adapter: str, ranks: int, **options: object) -> None:
    verdicts = check_trainer(adapter, ranks=ranks, options=options)
    assert [v.guarantee.code for v in verdicts] == CODES
    assert {v.state for v in verdicts} == {"pass"}, [v for v in verdicts if v.state != "pass"]
    assert all(v.measured and v.seconds > 0 for v in verdicts)


# --- correct trainers -------------------------------------------------------------------------


def test_fsdp_on_one_rank():
    assert_all_kept(FSDP, 1)


@pytest.mark.engines
def test_fsdp_on_two_ranks():
    assert_all_kept(FSDP, 2, activation_checkpointing=True, logits_chunk=64)


@pytest.mark.engines
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example(ranks):
    assert_all_kept(PLAIN, ranks)


def test_the_page_quotes_the_example_as_it_is():
    page = (ROOT / "docs" / "write-a-trainer-adapter.md").read_text()
    source = (ROOT / "examples" / "plain_trainer.py").read_text()
    blocks = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)[:-1]  # the last is a test of one's own
    quoted = [piece for block in blocks for piece in block.split("\n\n")]
    assert len(quoted) > 12
    assert [p for p in quoted if p not in source and textwrap.indent(p, "    ") not in source] == []


# --- ranks that fail --------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def live_ranks() -> list[int]:
    return children(multiprocessing.forkserver._forkserver._forkserver_pid)


def test_a_rank_that_raises_is_named_with_its_call_and_its_error():
    (verdict,) = check_trainer("tests.conformance.trainer_mutants.Raises", ranks=2, only=["T2"])
    assert verdict.state == "fail"
    assert verdict.measured == "rank 1 raised in step(): RuntimeError: no more gradients"
    assert verdict.expected
    assert not live_ranks()


def test_a_rank_that_hangs_ends_with_the_patience_and_is_left_nowhere():
    began = time.monotonic()
    (verdict,) = check_trainer("tests.conformance.trainer_mutants.Hangs", ranks=2, only=["T1"], patience_s=1)
    assert time.monotonic() - began < 5
    assert verdict.measured == (
        "not every rank ended within 1 s: rank 0 is in init_worker(); rank 1 is in init_worker()"
    )
    assert not live_ranks()


def test_a_rank_that_is_killed_is_told_by_its_signal():
    (verdict,) = check_trainer("tests.conformance.trainer_mutants.Dies", ranks=2, only=["T1"])
    assert verdict.measured == "rank 1 was killed by SIGKILL in forward()"


@pytest.mark.engines
def test_ranks_end_with_the_kit_even_where_it_is_killed(tmp_path):
    adapter = "tests.conformance.trainer_mutants.Hangs"
    kit = subprocess.Popen(
        [sys.executable, "-m", "contracts.conformance", "trainer", "--adapter", adapter, "--ranks", "2"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        while len(list(tmp_path.glob("*/T1/session-0/*.told"))) < 2:
            assert kit.poll() is None
            time.sleep(0.1)
        ranks = [rank for server in children(kit.pid) for rank in children(server)]
        assert len(ranks) == 2
    finally:
        kit.kill()
        kit.wait()
    deadline = time.monotonic() + 10
    while any(map(is_running, ranks)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


# --- the command ------------------------------------------------------------------------------


def run_here(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_trainer(parser)
    options = parser.parse_args(arguments)
    return options.run(options)


def command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "contracts.conformance", "trainer", *arguments],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_prints_a_table_and_ends_with_0():
    done = command("--adapter", PLAIN, "--only", "T4", "--only", "T1", "--option", "logits_chunk=7")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "T1 forward" in done.stdout
    assert "T4 manifest" in done.stdout
    assert "T2" not in done.stdout


def test_a_broken_guarantee_is_printed_as_json_and_ends_with_1(capfd):
    adapter = "tests.conformance.trainer_mutants.ForgetsTemperature"
    assert run_here("--adapter", adapter, "--only", "T1", "--json") == 1
    told = json.loads(capfd.readouterr().out)
    assert told["kept"] is False
    (row,) = told["guarantees"]
    assert (row["guarantee"], row["verdict"]) == ("T1", "fail")
    assert "temperature" in row["measured"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--adapter", "PlainTrainer"], "'PlainTrainer' is not a path to a class, package.module.Class"),
        (["--adapter", "examples.missing.Trainer"], "cannot import examples.missing.Trainer: "),
        (["--adapter", "examples.plain_trainer.Other"], "cannot import examples.plain_trainer.Other: "),
        (["--adapter", "examples.plain_trainer.Saved"], "is not a contracts.trainer.TrainerWorker"),
        (["--adapter", "contracts.trainer.TrainerWorker"], "does not implement backward, close, "),
        (["--adapter", PLAIN, "--only", "T8"], "there is no guarantee 'T8', only T1, T2, "),
        (["--adapter", PLAIN, "--model", "/no/model"], "/no/model is not a Hugging Face model directory"),
        (["--adapter", PLAIN, "--option", "chunk=7"], "cannot be made with the options {'chunk': 7}"),
        (["--adapter", PLAIN, "--ranks", "0"], "at least one rank, not 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, line, capfd):
    assert run_here(*arguments) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert line in told.err
    assert told.err.count("\n") == 1


def test_the_command_passes_the_status_on():
    assert command("--adapter", "nowhere.Trainer").returncode == 2


def test_kept_needs_a_pass():
    assert kept(check_trainer(PLAIN, only=["T4"]))
    assert not kept([])
