"""A benchmark refuses a bad argument before it measures anything: one clear message, and status 2."""

import argparse
import importlib
import sys

import pytest

from benchmarks.arguments import checkout
from benchmarks.preprocess import compose_there
from pipelinerl.errors import PlanError

CASES = {
    "admission": ["--steps 0", "--steps -1", "--steps x", "--seeds 0"],
    "actor": ["--seconds 0", "--seconds -1", "--seconds nan", "--seconds inf", "--seconds x", "--runs 0"],
    "trainer": ["--runs 0", "--sequences 0", "--length 0", "--alike -1", "--length 8 --alike 8"],
    "publish": ["--rounds 0", "--megabytes 5", "nokey=3", "batch_size=x"],
    "head": ["--tokens 0", "--tokens 8 -1", "--runs 0", "--vocabulary 0", "--hidden 0"],
    "trainer_loop": ["--runs 0", "--against /nope", "nokey=3"],
    "growth": ["--seconds 0", "--seconds -5", "--servers 0", "--groups 0", "--set nokey=3"],
    "preprocess": ["--runs 0", "--rollouts 0", "--rollouts 255", "--against /nope", "nokey=3", "max_lag=-1"],
    "schedules": [
        "--out /dev/null",
        "--only nope",
        "--only long,nope",
        "--only=",
        "--seeds=",
        "--seeds 0,,1",
        "nokey=3",
    ],
    "publish_passes": ["--rounds 0", "--bucket-bytes 0"],
    "adaptive": [
        "--out /dev/null",
        "--each 0",
        "--each 0.1,x",
        "--each nan",
        "--each=",
        "--seconds 0",
        "nokey=3",
    ],
    "plain_generate": ["/nope", "/nope --problems 0"],
    "trl.__main__": [
        "--python sh --runs 0",
        "--python sh --steps 5",
        "--python sh --threads 0",
        "--python sh --trl beta",
        "--python sh nokey=3",
        "--python /nope",
    ],
    "gpu_check.__main__": ["--dry --out /", "--dry --out /dev/null/table.md", "--dry --part nope"],
}


@pytest.mark.parametrize(
    ("command", "arguments"), [(command, case) for command, cases in CASES.items() for case in cases]
)
def test_a_bad_argument_is_refused(command, arguments, monkeypatch, capsys):
    main = importlib.import_module(f"benchmarks.{command}").main
    monkeypatch.setattr(sys, "argv", [command, *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.out == ""
    message = said.err.splitlines()[-1]
    name = f"python -m benchmarks.{command.removesuffix('.__main__')}: "
    assert message.startswith(name)
    assert len(message) > len(name) + 20


def test_a_setting_that_does_not_exist_is_refused_in_one_line(monkeypatch, capsys):
    main = importlib.import_module("benchmarks.preprocess").main
    monkeypatch.setattr(sys, "argv", ["preprocess", "nokey=3"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said.startswith("python -m benchmarks.preprocess: unknown configuration key")
    assert said.count("\n") == 1


def test_a_run_without_a_final_checkpoint_is_refused_by_its_missing_part(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").touch()
    main = importlib.import_module("benchmarks.plain_generate").main
    monkeypatch.setattr(sys, "argv", ["plain_generate", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"there is no {tmp_path / 'checkpoints' / 'final'}" in capsys.readouterr().err


def test_a_checkout_that_python_does_not_import_from_is_refused(tmp_path):
    package = tmp_path / "pipelinerl"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert checkout(str(tmp_path)) == tmp_path
    (package / "__init__.py").write_text("__file__ = '/elsewhere/pipelinerl/__init__.py'")
    with pytest.raises(argparse.ArgumentTypeError, match="/elsewhere/"):
        checkout(str(tmp_path))


def test_another_checkout_composes_by_its_own_code(tmp_path):
    launcher = tmp_path / "pipelinerl" / "launcher"
    launcher.mkdir(parents=True)
    (tmp_path / "pipelinerl" / "config.py").write_text("def save_config(text, path): path.write_text(text)")
    compose = launcher / "compose.py"
    compose.write_text("def compose_config(settings): return f'there: {settings}'")
    compose_there(tmp_path, tmp_path / "config.yaml", ["one=1"])
    assert (tmp_path / "config.yaml").read_text() == "there: ['one=1']"
    compose.write_text("def compose_config(settings): raise ValueError('no\\nsuch key')")
    with pytest.raises(PlanError, match="refuses the settings: no such key"):
        compose_there(tmp_path, tmp_path / "config.yaml", ["one=1"])
