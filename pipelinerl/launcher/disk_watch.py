"""Says on the console when the disk of a run is full: its processes wait, and their logs may lie there."""

import shutil
import time
from pathlib import Path

from pipelinerl.launcher.full_disk import LEAST_BYTES
from pipelinerl.launcher.messages import say

EVERY_S = 1.0


class DiskWatch:
    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._is_full = False
        self._next = 0.0

    def look(self) -> None:
        """Says that the disk has become full, or that it has room again. Looks at most every `EVERY_S`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        enough = 2 * LEAST_BYTES if self._is_full else LEAST_BYTES
        is_full = shutil.disk_usage(self._run_dir).free < enough
        if is_full and not self._is_full:
            say(f"the disk of {self._run_dir} is full: what has to be written there waits for room")
        if self._is_full and not is_full:
            say(f"the disk of {self._run_dir} has room again")
        self._is_full = is_full
