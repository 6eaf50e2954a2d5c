"""A small separate file system for a run, which can be filled. It needs permission to mount."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = "256m"
PIECE = bytes(64 << 10)
POLL_S = 0.02


@contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Mounts a small file system at the directory for the block. Yields whether that was permitted."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)]
    is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)


def keep_full(directory: Path, seconds: float) -> None:
    """Keeps the file system full for `seconds`."""
    ballast = directory / "ballast"
    deadline = time.monotonic() + seconds
    try:
        with ballast.open("ab", buffering=0) as file:
            while time.monotonic() < deadline:
                _fill(file)
                time.sleep(POLL_S)
    finally:
        ballast.unlink(missing_ok=True)


def _fill(file) -> None:
    try:
        while True:
            file.write(PIECE)
    except OSError:  # less than one piece is free
        return
