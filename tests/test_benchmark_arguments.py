"""A benchmark refuses a bad argument before it measures anything: one clear message, and status 2."""

import importlib
import sys

import pytest

CASES = {
    "trainer": "--length 8 --alike 8",
    "publish": "--megabytes 5",
    "schedules": "--only long,nope",
    "plain_generate": "/nope",
    "trl.__main__": "--python /nope",
    "gpu_check.__main__": "--dry --part nope",
}


@pytest.mark.parametrize(("command", "arguments"), CASES.items())
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
