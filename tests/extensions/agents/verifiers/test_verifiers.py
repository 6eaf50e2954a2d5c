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


@pytest.mark.parametrize("version", [None, "0.3.1"])
def test_another_version_is_refused(tmp_path, monkeypatch, version):
    if version:
        (tmp_path / f"verifiers-{version}.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: verifiers\nVersion: {version}\n"
        (tmp_path / f"verifiers-{version}.dist-info" / "METADATA").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        ValueError, match=f"it has verifiers {version or 'none'}, and verifiers 0.4.0 is needed"
    ):
        _ = made(sys.executable).train_size


def test_a_fence_is_refused():
    with pytest.raises(ValueError, match="isolation must be process"):
        made(sys.executable, isolation="fenced")
