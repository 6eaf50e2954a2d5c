"""Which workers are silent: their files (`pipelinerl.heartbeat`) have not changed for too long.

Times are the launcher's own. That of a file only tells whether it has changed, as another machine may set it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelinerl.heartbeat import beat_path

MARGIN_S = 2.0  # for a silent worker to write its stacks first
FIRST_BEAT_S = 120.0  # least time that a process has for its imports


@dataclass
class _Sign:
    mark: int | None  # time of the file, in nanoseconds
    seen_at: float


class Liveness:
    """timeout_s: the longest silence of a worker."""

    def __init__(self, run_dir: Path, timeout_s: float):
        self._run_dir = run_dir
        self._longest_s = timeout_s + MARGIN_S
        self._signs: dict[str, _Sign] = {}

    def began(self, name: str, now: float) -> None:
        """Takes note that a process of this name is started: its silence begins now."""
        self._signs[name] = _Sign(self._mark(name), now + max(0.0, FIRST_BEAT_S - self._longest_s))

    def silent(self, names: Iterable[str], now: float) -> list[str]:
        """Returns those that have been silent for too long."""
        return [name for name in names if now - self._heard_at(name, now) > self._longest_s]

    def _heard_at(self, name: str, now: float) -> float:
        sign = self._signs[name]
        mark = self._mark(name)
        if mark != sign.mark:
            self._signs[name] = sign = _Sign(mark, now)
        return sign.seen_at

    def _mark(self, name: str) -> int | None:
        try:
            return beat_path(self._run_dir, name).stat().st_mtime_ns
        except OSError:
            return None
