"""The trainer's kit on correct trainers, on ranks that fail, and as a command."""

import argparse
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contracts.conformance.table import all_hold
from contracts.conformance.trainer.bench import Bench
from contracts.conformance.trainer.command import add_trainer
from contracts.conformance.trainer.guarantees.t1_program import score
from contracts.conformance.trainer.kit import GUARANTEES, check_trainer
from contracts.conformance.trainer.rank import Refusal
from contracts.conformance.verdicts import Verdict
from contracts.trainer import OptimizerSpec
from tests.conformance.kept import assert_kept
from tests.conformance.odd_trainers import ODD
from tests.limits import HANG_S

ROOT = Path(__file__).parents[2]
CODES = [guarantee.code for guarantee in GUARANTEES]
FSDP = "trainer_adapters.fsdp.FSDPTrainer"
DEEPSPEED = "trainer_adapters.deepspeed.DeepSpeedTrainer"
PLAIN = "examples.plain_trainer.PlainTrainer"
LORA = {"rank": 4, "alpha": 8}
OFFLOAD = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


def assert_all_kept(adapter: str, ranks: int, **options: object) -> None:
    verdicts = check_trainer(adapter, ranks=ranks, options=options, patience_s=HANG_S)
    assert [v.guarantee.code for v in verdicts] == CODES
    assert all(v.measured and v.seconds > 0 for v in verdicts)
    assert_not_offered(verdicts.pop(), "T10", "period is None")
    if adapter == PLAIN:
        assert_not_offered(verdicts.pop(), "T9", "shards() returns None")
        assert_not_offered(verdicts.pop(), "T8", "offloads is false")
    assert_kept(verdicts)


def assert_not_offered(verdict: Verdict, code: str, why: str) -> None:
    assert (verdict.guarantee.code, verdict.state) == (code, "not declared")
    assert verdict.measured == f"not offered: {why}"


# --- correct trainers -------------------------------------------------------------------------


def test_fsdp_on_one_rank():
    verdicts = check_trainer(FSDP, ranks=1, only=["T4", "T6"])
    assert_kept(verdicts)
    assert ["only one rank was tried" in v.measured for v in verdicts] == [False, True]


@pytest.mark.engines
def test_fsdp_on_two_ranks():
    assert_all_kept(FSDP, 2, activation_checkpointing=True, logits_chunk=64)


@pytest.mark.engines
@pytest.mark.parametrize(
    ("adapter", "ranks", "options", "codes"),
    [
        (FSDP, 2, {"lora": LORA}, ["T3", "T5"]),
        (DEEPSPEED, 1, {"zero_stage": 2}, ["T2", "T3"]),
        (DEEPSPEED, 2, {"zero_stage": 3}, ["T2", "T3"]),
    ],
    ids=["low-rank", "deepspeed-2", "deepspeed-3"],
)
def test_another_form_learns(adapter, ranks, options, codes):
    verdicts = check_trainer(adapter, ranks=ranks, options=options, only=codes, patience_s=HANG_S)
    assert_kept(verdicts)
    (updates,) = [verdict.measured for verdict in verdicts if verdict.guarantee.code == "T3"]
    assert ("of factors of rank 4 of 14 weights equal" in updates) == ("lora" in options)


FORMS = {
    "fsdp": (FSDP, 1, {}),
    "fsdp-low-rank": (FSDP, 2, {"lora": LORA, "activation_checkpointing": True}),
    "fsdp-low-rank-one": (FSDP, 1, {"lora": LORA}),
    "fsdp-low-rank-values": (
        FSDP,
        2,
        {"lora": LORA | {"targets": ["q_proj", "down_proj"]}, "value_head": True},
    ),
    "fsdp-compiled-one": (FSDP, 1, {"compile_layers": True}),
    "fsdp-compiled": (FSDP, 2, {"compile_layers": True}),
    "fsdp-compiled-low-rank": (FSDP, 2, {"compile_layers": True, "lora": LORA}),
    "deepspeed-1-one": (DEEPSPEED, 1, {"zero_stage": 1}),
    "deepspeed-1": (DEEPSPEED, 2, {"zero_stage": 1}),
    "deepspeed-2-one": (DEEPSPEED, 1, {"zero_stage": 2}),
    "deepspeed-2-selective": (DEEPSPEED, 2, {"zero_stage": 2, "activation_checkpointing": "selective"}),
    "deepspeed-2-offload": (DEEPSPEED, 2, {"zero_stage": 2, "config": OFFLOAD}),
    "deepspeed-2-low-rank": (DEEPSPEED, 2, {"zero_stage": 2, "lora": LORA}),
    "deepspeed-3-one": (DEEPSPEED, 1, {"zero_stage": 3}),
    "deepspeed-3": (DEEPSPEED, 2, {"zero_stage": 3}),
    "deepspeed-3-low-rank": (DEEPSPEED, 2, {"zero_stage": 3, "lora": LORA}),
    "example-one": (PLAIN, 1, {}),
    "example": (PLAIN, 2, {}),
}


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_keeps_everything(form):
    adapter, ranks, options = FORMS[form]
    assert_all_kept(adapter, ranks, **options)


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_offloads_its_masters_under_bfloat16(stage):
    options = {"zero_stage": stage, "compute_dtype": "bfloat16"}
    assert_kept(check_trainer(DEEPSPEED, ranks=2, options=options, only=["T8"], patience_s=HANG_S))


def test_a_trainer_without_offloads_shards_or_a_period_is_not_tried_on_them():
    offloads, shards, periods = check_trainer(PLAIN, ranks=1, only=["T8", "T9", "T10"])
    assert_not_offered(offloads, "T8", "offloads is false")
    assert_not_offered(shards, "T9", "shards() returns None")
    assert_not_offered(periods, "T10", "period is None")


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.trainer.__name__)
def test_an_unusual_trainer_that_keeps_the_contract(odd):
    for code, part in odd.parts:
        assert_kept(check_trainer(odd.path, ranks=odd.ranks, only=[code], part=part))


@pytest.mark.long
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.trainer.__name__)
def test_an_unusual_trainer_keeps_everything(odd):
    verdicts = check_trainer(odd.path, ranks=odd.ranks)
    assert [verdict for verdict in verdicts if verdict.state == "fail"] == []


# --- ranks that fail --------------------------------------------------------------------------


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def live_ranks() -> list[int]:
    return children(multiprocessing.forkserver._forkserver._forkserver_pid)


def test_a_rank_that_raises_is_named_with_its_call_and_its_error():
    (verdict,) = check_trainer("tests.conformance.failing_trainers.Raises", ranks=2, only=["T2"])
    assert verdict.state == "fail"
    assert verdict.measured == "rank 1 raised in step(): RuntimeError: no more gradients"
    assert verdict.expected
    assert not live_ranks()


def test_a_rank_that_hangs_ends_with_the_patience_and_is_left_nowhere():
    (verdict,) = check_trainer("tests.conformance.failing_trainers.Hangs", ranks=2, only=["T1"], patience_s=1)
    where = r"(being started|in init_worker\(\))"  # a busy machine may take all this time to start it
    assert re.fullmatch(
        f"not every rank ended within 1 s: rank 0 is {where}; rank 1 is {where}", verdict.measured
    )
    assert not live_ranks()


def test_a_rank_that_refuses_its_model_is_there_until_the_others_have_refused_it(tmp_path):
    adapter = "tests.conformance.failing_trainers.RefusesAtOnceOnRankZero"
    bench = Bench(adapter, {}, 2, "cpu", HANG_S, tmp_path, ())
    results = bench.session(score, "", OptimizerSpec(lr=0.1), [], doing="init_worker", may_refuse=True)
    assert results == [Refusal("no such model")] * 2


def test_a_rank_that_is_killed_is_told_by_its_signal():
    (verdict,) = check_trainer("tests.conformance.failing_trainers.Dies", ranks=2, only=["T1"])
    assert verdict.measured == "rank 1 was killed by SIGKILL in forward()"


@pytest.mark.engines
def test_ranks_end_with_the_kit_even_where_it_is_killed(tmp_path):
    adapter = "tests.conformance.failing_trainers.Hangs"
    kit = subprocess.Popen(
        [sys.executable, "-m", "contracts.conformance", "trainer", "--adapter", adapter, "--ranks", "2"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        while len(list(tmp_path.glob("*/T1/session-0/*.position"))) < 2:
            assert kit.poll() is None
            time.sleep(0.1)
        ranks = [rank for server in children(kit.pid) for rank in children(server)]
        assert len(ranks) == 2
    finally:
        kit.kill()
        kit.wait()
    while any(map(is_running, ranks)):
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


# --- the command ------------------------------------------------------------------------------


def run_here(*arguments: str) -> int:
    options = parsed(*arguments)
    return options.run(options)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_trainer(parser)
    return parser.parse_args(arguments)


def test_the_command_prints_a_table_and_how_to_see_it_again_and_ends_with_1(capfd, monkeypatch):
    """Of a trainer that only a second rank, which is there by default, tells from a correct one."""
    monkeypatch.setenv("COLUMNS", "200")
    adapter = "tests.conformance.trainer_mutants.gradient.AveragesOverRanks"
    asked = ["--adapter", adapter, "--option", "logits_chunk=7", "--option", "compute_dtype=float32"]
    asked += ["--patience-s", "500", "--device", "cpu"]
    assert run_here(*asked, "--only", "T4", "--only", "T2") == 1
    output = capfd.readouterr().out
    assert re.search("T2 gradient .* fail .* all tensors are 0.5 times", output)
    assert re.search("T4 manifest .* pass ", output)
    assert "T6" not in output
    (line,) = re.findall("alone: +python -m contracts.conformance trainer (.*)", output)
    assert parsed(*shlex.split(line)) == parsed(*asked, "--ranks", "2", "--only", "T2", "--part", "cuts")


def test_a_broken_guarantee_is_printed_as_json_and_ends_with_1(capfd):
    adapter = "tests.conformance.printing_trainer.PrintsAndForgetsTemperature"
    assert run_here("--adapter", adapter, "--only", "T1", "--ranks", "1", "--json") == 1
    output = json.loads(capfd.readouterr().out)
    assert output["kept"] is False
    (row,) = output["guarantees"]
    assert (row["guarantee"], row["verdict"]) == ("T1", "fail")
    assert "temperature" in row["measured"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--adapter", "PlainTrainer"], "'PlainTrainer' is not a path to a class, package.module.Class"),
        (["--adapter", "examples.missing.Trainer"], "cannot import examples.missing.Trainer: "),
        (["--adapter", "examples.plain_trainer.Other"], "cannot import examples.plain_trainer.Other: "),
        (["--adapter", "tests.conformance.raising_trainer.T"], "RuntimeError: no such backend here"),
        (["--adapter", "examples.plain_trainer.Saved"], "is not a contracts.trainer.TrainerWorker"),
        (["--adapter", "contracts.trainer.TrainerWorker"], "does not implement backward, close, "),
        (
            ["--adapter", PLAIN, "--only", "T11"],
            "no guarantee T11: they are T1, T2, T3, T4, T5, T6, T7, T8, T9, T10",
        ),
        (
            ["--adapter", PLAIN, "--only", "T2", "--part", "saves"],
            "T2 has no part saves: they are cuts, orders",
        ),
        (["--adapter", PLAIN, "--part", "saves"], "the part saves is of one guarantee"),
        (["--adapter", PLAIN, "--model", "/no/model"], "/no/model is not a Hugging Face model directory"),
        (["--adapter", PLAIN, "--option", "chunk=7"], "cannot be made with the options {'chunk': 7}"),
        (["--adapter", PLAIN, "--ranks", "0"], "at least one rank, not 0"),
        (["--adapter", PLAIN, "--patience-s", "0"], "the patience is a positive number of seconds, not 0"),
        (["--adapter", PLAIN, "--ranks", "99", "--device", "cuda"], "99 rank(s) on cuda need a GPU each"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, line, capfd):
    assert run_here(*arguments) == 2
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("cannot check: ")
    assert line in output.err
    assert output.err.count("\n") == 1


def test_it_ends_with_0_where_all_is_kept(capfd):
    assert run_here("--adapter", PLAIN, "--only", "T4", "--ranks", "1") == 0
    assert "T4 manifest" in capfd.readouterr().out


def test_it_ends_with_2_where_nothing_is_declared(capfd):
    assert run_here("--adapter", PLAIN, "--only", "T10", "--ranks", "1", "--json") == 2
    (row,) = json.loads(capfd.readouterr().out)["guarantees"]
    assert (row["verdict"], row["part"]) == ("not declared", "periods")


def test_kept_needs_a_pass():
    assert not all_hold([])
