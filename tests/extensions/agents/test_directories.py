"""What the directory of a program may hold, and what is left of services that were killed."""

import os

import pytest

from extensions.agents.programs import directories
from extensions.agents.programs.directories import PREFIX, TooMuchError, check_size, stale_directories


def test_files_of_all_levels_count_and_links_do_not(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    os.symlink("/usr", tmp_path / "link")
    check_size(str(tmp_path), 1 << 20)
    with pytest.raises(TooMuchError, match="more than 50000 bytes"):
        check_size(str(tmp_path), 50_000)


def test_too_many_files_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    with pytest.raises(TooMuchError, match="more than 3 files"):
        check_size(str(tmp_path), 1 << 20)


def test_what_vanishes_is_passed_over_and_the_rest_counts(tmp_path, monkeypatch):
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 10_000)

    class Entries:
        """The entries of a directory whose first file is removed after it was listed."""

        def __enter__(self):
            entries = list(scan(str(tmp_path)))
            os.unlink(entries[0].path)
            return iter(entries)

        def __exit__(self, *_):
            return None

    scan = os.scandir
    monkeypatch.setattr(directories.os, "scandir", lambda _: Entries())
    with pytest.raises(TooMuchError):
        check_size(str(tmp_path), 50_000)


def test_directories_of_killed_services_are_stale(tmp_path):
    ours = tmp_path / f"{PREFIX}{os.getpid()}-x"
    stale = tmp_path / f"{PREFIX}4194305-x"  # above the largest number of a process
    for path in (ours, stale, tmp_path / f"{PREFIX}word", tmp_path / "other"):
        path.mkdir()
    assert stale_directories(str(tmp_path)) == [str(stale)]
