"""What is refused before anything of `verifiers` runs. The rest needs the package: test_worker.py."""

import sys

import pytest

from extensions.agents.verifiers.domain import Verifiers

SPLIT = {"select": {}}


def made(python=None, **agent):
    env = {"taskset": {"id": "guess_number"}}
    return Verifiers(env, SPLIT, SPLIT, 1.0, python, [], agent, {})


def test_an_environment_that_is_missing_names_what_installs_it(tmp_path):
    with pytest.raises(ValueError, match="make verifiers-env"):
        made(str(tmp_path / "python"))


@pytest.mark.parametrize(("version", "words"), [(None, "no verifiers"), ("0.3.1", "verifiers 0.3.1")])
def test_another_version_is_refused(tmp_path, monkeypatch, version, words):
    if version:
        (tmp_path / f"verifiers-{version}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n"
        (tmp_path / f"verifiers-{version}.dist-info" / "METADATA").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match=f"it has {words}, and verifiers 0.4.0 is needed"):
        _ = made(sys.executable).train_size


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"agent": {"isolation": "fenced"}}, "domain.agent.isolation cannot be set"),
        ({"agent": {"serve": False}}, "domain.agent.serve cannot be set"),
        ({"train": {"limit": 5}}, "domain.train.limit"),
        ({"success_at": "high"}, "domain.success_at=high must be a number"),
        ({"path": "here"}, r"domain.path=\[here\]"),
        ({"path": ["no/such/directory"]}, "there is no directory"),
    ],
)
def test_wrong_options_are_refused_by_name(changed, words):
    given = {"env": {}, "train": {}, "heldout": {}, "success_at": 1.0, "python": sys.executable, "path": []}
    with pytest.raises(ValueError, match=words):
        Verifiers(**{**given, "agent": {}, "endpoint": {}, **changed})


def test_a_value_of_a_variable_is_on_no_command_line():
    verifiers = made(sys.executable, env={"JUDGE_KEY": "secret"})
    assert "secret" not in " ".join(verifiers.verifiers["agents"]["command"])
