"""The command that computes what rounds cost."""

import pytest

from extensions.islands import budget


def command(monkeypatch, capsys, **numbers: str) -> str:
    """Returns what the command prints."""
    options = {"parameters": "10e9", "islands": "4", "megabit": "4000", "every": "100", "step-s": "24"}
    arguments = [text for name, value in (options | numbers).items() for text in (f"--{name}", value)]
    monkeypatch.setattr("sys.argv", ["budget", *arguments])
    budget.main()
    return capsys.readouterr().out


def test_what_ten_billion_parameters_cost(monkeypatch, capsys):
    printed = command(monkeypatch, capsys)
    assert "round: 1.523e+10" in printed  # 2 * 3 / 4 * 1e10 * (1 + 4 / 256)
    assert "394 times as many" in printed
    assert "transfer of a round: 30.47 s at 4000 Mbit/s" in printed
    assert "transfer: 1.25%" in printed  # 30.47 / (30.47 + 2400)


@pytest.mark.parametrize(
    "wrong", [{"islands": "1"}, {"parameters": "nan"}, {"megabit": "inf"}, {"every": "0"}, {"step-s": "-1"}]
)
def test_numbers_that_cost_nothing_or_all_are_refused(monkeypatch, capsys, wrong):
    with pytest.raises(SystemExit) as ended:
        command(monkeypatch, capsys, **wrong)
    assert ended.value.code == 2
    assert "finite numbers above 0" in capsys.readouterr().err
