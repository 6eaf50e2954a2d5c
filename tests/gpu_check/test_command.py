"""The command runs every part, writes the table, and its status says whether a part failed."""

import re

import pytest
import torch

from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.inside import run
from benchmarks.gpu_check.parts import PARTS
from benchmarks.gpu_check.running import run_part
from tests.gpu_check import made_up_parts


def rows(text: str) -> dict[str, list[str]]:
    """Returns the cells of each part's row: result, seconds, measured."""
    lines = re.findall(r"^\| `(.+?)` \| (.*) \|$", text, re.MULTILINE)
    return {part: cells.split(" | ") for part, cells in lines}


def test_a_part_that_fails_stops_no_other_and_is_the_status(tmp_path):
    out = tmp_path / "table.md"
    parts = {name: made_up_parts.PARTS[name] for name in ("dies", "skips", "passes", "fails", "raises")}
    assert main(["--dry", "--out", str(out)], parts) == 1
    found = rows(out.read_text())
    assert list(found) == [*parts]
    assert found["dies"][0::2] == ["fail", "the part's process ended with status -9"]
    assert found["skips"][0::2] == ["skipped", "two ranks need a GPU each, and torch sees 1"]
    assert found["passes"][0::2] == ["pass", "dry is True<br>a / b"]
    assert found["fails"][0::2] == ["fail", "3 of 4 hold<br>expected: 4"]
    assert found["raises"][0::2] == ["fail", "RuntimeError: CUDA error: an illegal memory access"]
    assert out.read_text().startswith("### dry: ")


def test_without_a_failure_the_status_is_0_and_an_earlier_result_is_replaced(tmp_path):
    out = tmp_path / "table.md"
    parts = {"passes": made_up_parts.PARTS["fails"], "skips": made_up_parts.PARTS["skips"]}
    assert main(["--dry", "--out", str(out)], parts) == 1
    assert main(["--dry", "--out", str(out), "--part", "passes"], made_up_parts.PARTS) == 0
    found = rows(out.read_text())
    assert {part: cells[0] for part, cells in found.items()} == {"passes": "pass", "skips": "skipped"}
    assert out.read_text().count("### ") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_checked(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "table.md")], made_up_parts.PARTS) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()


def test_a_part_that_hangs_is_ended():
    outcome = run_part("hangs", "tests.gpu_check.made_up_parts:hangs", dry=True, longest_s=0.5)
    assert (outcome.state, outcome.lines) == ("fail", ["no end within 0.5 s"])


def test_a_part_that_needs_two_gpus_is_skipped_by_name():
    outcome = run("publication-nccl", PARTS["publication-nccl"], dry=False)
    assert outcome.state == "skipped"
    assert outcome.lines[0].startswith("NCCL refuses two ranks on one GPU, and torch sees 0")


def test_the_weight_group_part_runs_dry():
    outcome = run("nccl", PARTS["nccl"], dry=True)
    assert outcome.state == "pass", outcome.lines
    assert [line.split(":")[0] for line in outcome.lines[1:]] == [
        "a peer killed in mid-broadcast",
        "a peer stalled in mid-broadcast",
        "a peer that never comes",
    ]


@pytest.mark.engines
@pytest.mark.parametrize("part", ["publication-gloo", "head", "train-0.5b"])
def test_a_part_runs_dry(part):
    outcome = run_part(part, PARTS[part], dry=True)
    assert outcome.state == "pass", outcome.lines
