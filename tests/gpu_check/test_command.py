"""The command runs every part, writes the table, and its status says whether a part failed."""

import re

import pytest
import torch

from benchmarks.gpu_check.__main__ import PAGE, main
from benchmarks.gpu_check.inside import run
from benchmarks.gpu_check.parts import PARTS, Part, passed_in, unmeasured_first
from benchmarks.gpu_check.running import run_part
from tests.gpu_check import made_up_parts


def rows(text: str) -> dict[str, list[str]]:
    """Returns the cells of each part's row: result, seconds, measured."""
    lines = re.findall(r"^\| `(.+?)` \| (.*) \|$", text, re.MULTILINE)
    return {part: cells.split(" | ") for part, cells in lines}


def test_a_part_that_fails_stops_no_other_and_is_the_status_and_its_row_is_replaced(tmp_path):
    out = tmp_path / "table.md"
    parts = {name: made_up_parts.PARTS[name] for name in ("dies", "skips", "passes")}
    assert main(["--dry", "--out", str(out)], {**parts, "passes": parts["dies"]}) == 1
    assert main(["--dry", "--out", str(out)], parts) == 1
    found = rows(out.read_text())
    assert list(found) == ["dies", "skips", "passes"]
    assert found["dies"][0::2] == ["fail", "the part's process ended with status -9"]
    assert found["skips"][0::2] == ["skipped", "two ranks need a GPU each, and torch sees 1"]
    assert found["passes"][0::2] == ["pass", "dry is True<br>a / b"]
    assert out.read_text().startswith("### dry: ") and out.read_text().count("### ") == 1
    assert main(["--dry", "--out", str(out), "--part", "passes"], parts) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_checked(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "table.md")], made_up_parts.PARTS) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
    assert not (tmp_path / "table.md").exists()


@pytest.mark.parametrize(
    ("name", "state", "lines"),
    [
        ("fails", "fail", ["3 of 4 hold", "expected: 4"]),
        ("raises", "fail", ["RuntimeError: CUDA error: an illegal memory access"]),
    ],
)
def test_the_lines_of_a_part_that_fails_say_why(name, state, lines):
    outcome = run(name, made_up_parts.PARTS[name].function, dry=True)
    assert (outcome.state, outcome.lines) == (state, lines)


def test_a_part_that_hangs_is_ended():
    outcome = run_part("hangs", "tests.gpu_check.made_up_parts:hangs", dry=True, longest_s=0.5)
    assert (outcome.state, outcome.lines) == ("fail", ["no end within 0.5 s"])


def test_parts_that_no_table_has_come_first_and_one_that_does_not_fit_is_not_begun(tmp_path, capsys):
    long = Part(made_up_parts.PARTS["dies"].function, minutes=3)
    parts = {"head": long, "fits": made_up_parts.PARTS["passes"]}
    arguments = ["--dry", "--out", str(tmp_path / "table.md"), "--minutes"]
    assert main([*arguments, "2"], parts) == 0
    assert list(rows(capsys.readouterr().out)) == ["fits"]
    assert main([*arguments, "2"], {"head": long}) == 2  # nothing fits
    capsys.readouterr()
    assert main([*arguments, "4"], parts) == 1
    assert list(rows(capsys.readouterr().out)) == ["fits", "head"]  # docs/gpu.md has the head


def test_only_a_pass_on_a_gpu_counts_as_measured():
    row = "| `{}` | {} | 1 | |\n"
    page = f"{row.format('a', 'what it does')}\n### H100\n{row.format('b', 'fail')}{row.format('c', 'pass')}"
    page += f"\n### dry: CPU\n{row.format('d', 'pass')}"
    assert unmeasured_first(dict.fromkeys("cabd"), page) == ["a", "b", "d", "c"]


def test_the_page_names_the_parts_that_no_table_has():
    page = PAGE.read_text()
    _, _, sentence = page.partition("\nThese parts have not passed on a GPU: ")
    named = re.findall("`(.+?)`", sentence.partition(". ")[0])
    assert set(named) == PARTS.keys() - passed_in(page)


@pytest.mark.parametrize(
    "part",
    [
        "nccl",
        *(
            pytest.param(p, marks=pytest.mark.engines)
            for p in ("publication-gloo", "train-0.5b", "real-model")
        ),
    ],
)
def test_a_part_runs_dry(part):
    outcome = run_part(part, PARTS[part].function, dry=True)
    assert outcome.state == "pass", outcome.lines


def test_attention_runs_dry():
    outcome = run("varlen", PARTS["varlen"].function, dry=True)
    assert outcome.state == "pass", outcome.lines
