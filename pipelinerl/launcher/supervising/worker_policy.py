"""Decides how to react when a worker hangs or ends. Pure logic: the caller passes clock and job states.

The workers are the actor, the preprocessor and the trainer ranks. They restart together, because each of them
needs state that the others have in memory. A trainer that is alive saves a checkpoint first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from pipelinerl.heartbeat import beat_path
from pipelinerl.launcher.executors.base import Ended, JobState, Lost
from pipelinerl.launcher.resource_requests import is_rank
from pipelinerl.launcher.supervising.failures import Restarts, failed_worker, is_alive, is_by_signal
from pipelinerl.process import REFUSED

SETTLE_S = 1.0  # wait after a failure, so that the failures it causes are seen too
MARGIN_S = 2.0  # time for a silent worker to write its stacks to its log
FIRST_BEAT_S = 120.0  # least time of a process for its imports


class WorkerAction(Enum):
    WAIT = auto()
    SAVE = auto()  # ask the trainer to save a checkpoint and to end
    RESTART = auto()  # end the remaining workers, then restart all
    FAIL = auto()  # end the run


class WorkerPolicy:
    """Decides between waiting, saving, restarting and failing the run."""

    def __init__(self, names: Sequence[str], restarts: Restarts, settle_s: float, patience_s: float):
        """settle_s: wait after a failure until its cause is known. patience_s: longest wait for a save."""
        self._ranks = [name for name in names if is_rank(name)]
        self._restarts = restarts
        self._settle_s = max(settle_s, SETTLE_S)
        self._patience_s = patience_s
        self.cause: str | None = None  # the worker whose failure is handled
        self.why_not = ""  # why the workers are not restarted, if the cause's end does not explain it
        self._failed_at: float | None = None
        self._save_until: float | None = None
        self._newest_version = -1  # over all restarts
        self._ends_without_progress = 0

    def next_action(
        self,
        states: Mapping[str, JobState],
        now: float,
        version: int | None,
        hung: Collection[str] = (),
        done: bool = False,
    ) -> WorkerAction:
        """Returns the next action. Called a few times a second; returns SAVE, RESTART and FAIL once.

        states: of the workers, and of each service whose node is lost.
        version: the newest version that these workers have made; None before their first.
        hung: workers that the launcher ended because they were silent.
        done: whether the last step has closed. Before that, a worker must not end even with status 0.
        """
        if self.cause is None:
            failed = failed_worker(states, hung) or (None if done else self._ended_early(states))
            return self._handle_failure(failed, states, now, version, hung)
        if self._save_until is not None and now < self._save_until and self._can_save(states, hung):
            return WorkerAction.WAIT
        if not self._restarts.is_due(now):
            return WorkerAction.WAIT
        self.cause = None
        self._failed_at = None
        self._save_until = None
        return WorkerAction.RESTART

    def _ended_early(self, states: Mapping[str, JobState]) -> str | None:
        """Returns a worker that ended with status 0 before the last step. Ranks count if all have ended."""
        ended = [name for name, state in states.items() if isinstance(state, Ended)]
        others = [name for name in ended if name not in self._ranks]
        all_ranks = self._ranks if {*ended} >= {*self._ranks} else []
        return next(iter([*others, *all_ranks]), None)

    def _handle_failure(
        self,
        failed: str | None,
        states: Mapping[str, JobState],
        now: float,
        version: int | None,
        hung: Collection[str],
    ) -> WorkerAction:
        if failed is None:
            self._failed_at = None
            return WorkerAction.WAIT
        if any(is_alive(states.get(name)) for name in hung):
            return WorkerAction.WAIT  # it was told to end, and may have caused the failure
        self._failed_at = self._failed_at or now
        state = states[failed]
        if now - self._failed_at < self._settle_s and not isinstance(state, Lost):
            return WorkerAction.WAIT
        self.cause = failed
        is_before_first_step = self._newest_version < 0 and version is None
        has_progressed = version is not None and version > self._newest_version
        self._ends_without_progress = 0 if has_progressed else self._ends_without_progress + 1
        self._newest_version = version if has_progressed else self._newest_version
        self._restarts.record_end(now)
        has_status = isinstance(state, Ended) and failed not in hung
        if has_status and _would_repeat(state.status, is_before_first_step):
            return WorkerAction.FAIL
        if self._restarts.is_spent:
            self.why_not = self._restarts.spent_message("restarts.workers")
            return WorkerAction.FAIL
        if self._ends_without_progress > self._restarts.limit:
            self.why_not = f"they have begun again {self._restarts.limit} times without a further step"
            return WorkerAction.FAIL
        if version is None or not self._can_save(states, hung):
            return WorkerAction.WAIT
        self._save_until = now + self._patience_s
        return WorkerAction.SAVE

    def _can_save(self, states: Mapping[str, JobState], hung: Collection[str]) -> bool:
        """Returns True if no trainer rank has failed, and at least one is running."""
        ranks = [states[name] for name in self._ranks]
        well = all(is_alive(state) or (isinstance(state, Ended) and state.status == 0) for state in ranks)
        return well and any(map(is_alive, ranks)) and not {*self._ranks} & {*hung}


def _would_repeat(status: int, is_before_first_step: bool) -> bool:
    """Returns True for a refusal, and for an error before the first step: a restart would not help."""
    return status == REFUSED or (is_before_first_step and not is_by_signal(status))


@dataclass
class _Beat:
    modified: int | None  # the file's modification time, in nanoseconds
    seen_at: float


class Liveness:
    """Finds workers whose heartbeat files (`pipelinerl.heartbeat`) have not changed for too long.

    Compares the files' times only for equality, because another machine may set them.
    timeout_s: the longest silence of a worker.
    """

    def __init__(self, run_dir: Path, timeout_s: float):
        self._run_dir = run_dir
        self._longest_s = timeout_s + MARGIN_S
        self._beats: dict[str, _Beat] = {}

    def started(self, name: str, now: float) -> None:
        """Must be called when a process of this name is started."""
        self._beats[name] = _Beat(self._modified(name), now + max(0.0, FIRST_BEAT_S - self._longest_s))

    def silent(self, names: Iterable[str], now: float) -> list[str]:
        return [name for name in names if now - self._last_beat_at(name, now) > self._longest_s]

    def _last_beat_at(self, name: str, now: float) -> float:
        modified = self._modified(name)
        if modified != self._beats[name].modified:
            self._beats[name] = _Beat(modified, now)
        return self._beats[name].seen_at

    def _modified(self, name: str) -> int | None:
        try:
            return beat_path(self._run_dir, name).stat().st_mtime_ns
        except OSError:
            return None
