"""Tests that failed among others are tried once more, alone; what else went wrong stays so."""

import pytest

from tests import again

ALONE = ["--last-failed", "--last-failed-no-failures=none"]
UNSTEADY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_passes_the_second_time(n):
    seen = Path(__file__).with_name(f"seen{{n}}")
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Yields a directory whose tests are run by a pytest of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(again, "FAILED", tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    return tmp_path


def test_a_test_that_passes_alone_is_named(folder, capfd):
    (folder / "test_it.py").write_text(UNSTEADY.format(count=again.AT_MOST) + "\ndef test_steady(): pass\n")
    assert again.main([], ALONE) == 0
    assert "unsteady: test_it.py::test_passes_the_second_time[0] failed among" in capfd.readouterr().out


def test_a_test_that_fails_again_fails(folder):
    (folder / "test_it.py").write_text("def test_broken(): assert 0\n")
    assert again.main([], ALONE) == pytest.ExitCode.TESTS_FAILED


def test_many_failures_are_not_tried_again(folder):
    (folder / "test_it.py").write_text(UNSTEADY.format(count=again.AT_MOST + 1))
    assert again.main([], ALONE) == pytest.ExitCode.TESTS_FAILED
    assert again.main([], ALONE) == 0  # this is the second time


def test_a_run_that_did_not_end_is_not_tried_again(folder):
    stops = "\ndef test_z():\n    raise KeyboardInterrupt\n"
    (folder / "test_it.py").write_text(UNSTEADY.format(count=1) + stops)
    assert again.main([], ALONE) == pytest.ExitCode.INTERRUPTED


def test_a_run_of_no_test_is_no_success(folder):
    assert again.main([], ALONE) == pytest.ExitCode.NO_TESTS_COLLECTED
