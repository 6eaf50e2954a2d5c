"""A benchmark refuses a bad argument before it measures anything: one clear message, and status 2."""

import importlib
import sys

import pytest

CASES = {
    "admission": ["--steps 0", "--steps -1", "--steps x", "--seeds 0"],
    "actor": ["--seconds 0", "--seconds -1", "--seconds nan", "--seconds inf", "--seconds x", "--runs 0"],
    "trainer": ["--runs 0", "--sequences 0", "--length 0"],
    "publish": ["--rounds 0", "--megabytes 5", "nokey=3", "batch_size=x"],
    "head": ["--tokens 0", "--tokens 8 -1", "--runs 0", "--vocabulary 0", "--hidden 0"],
    "trainer_loop": ["--runs 0", "--against /nope"],
    "growth": ["--seconds 0", "--seconds -5", "--servers 0", "--groups 0"],
    "preprocess": ["--runs 0", "--rollouts 0", "--rollouts 255", "--against /nope", "nokey=3", "max_lag=-1"],
    "schedules": ["--only nope", "--only long,nope", "--only=", "--seeds=", "--seeds 0,,1", "--seeds x"],
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
    assert message.startswith(f"{command}: ")
    assert len(message) > len(f"{command}: ") + 20


def test_a_setting_that_does_not_exist_is_refused_in_one_line(monkeypatch, capsys):
    main = importlib.import_module("benchmarks.preprocess").main
    monkeypatch.setattr(sys, "argv", ["preprocess", "nokey=3"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown configuration key" in capsys.readouterr().err


def test_a_run_without_a_final_checkpoint_is_refused_by_its_missing_part(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").touch()
    main = importlib.import_module("benchmarks.plain_generate").main
    monkeypatch.setattr(sys, "argv", ["plain_generate", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"there is no {tmp_path / 'checkpoints' / 'final'}" in capsys.readouterr().err
