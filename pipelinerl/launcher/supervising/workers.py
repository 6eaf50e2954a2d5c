"""Which workers of a run are silent, and what follows when one has ended. Times and fates are given.

The workers are the actor, the preprocessor and the trainer's ranks. They begin again together, because the
others need what one of them had in memory. A trainer that lives saves its state first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from pipelinerl.heartbeat import beat_path
from pipelinerl.launcher.executors.base import Ended, Fate, Lost
from pipelinerl.launcher.supervising.ends import Restarts, failed_worker, is_alive, is_by_signal
from pipelinerl.launcher.wants import is_rank
from pipelinerl.process import REFUSED

SETTLE_S = 1.0  # for those that end in the wake of another, so that the first is told apart from them
MARGIN_S = 2.0  # for a silent worker to write its stacks first
FIRST_BEAT_S = 120.0  # least time that a process has for its imports


class Step(Enum):
    """What the launcher does next about the workers."""

    WAIT = auto()  # nothing
    SAVE = auto()  # asks the trainer to save its state and to end
    BEGIN = auto()  # ends what is left of them and begins them again
    FAIL = auto()  # ends the run


class Workers:
    """Decides what follows when one of them has ended.

    cause: the worker that ended first, or None while none has.
    why_not: why they do not begin again, where more is to be said than how the cause ended.
    """

    def __init__(self, names: Sequence[str], restarts: Restarts, settle_s: float, patience_s: float):
        """settle_s: until it is known why a worker has ended. patience_s: longest wait for a save."""
        self._ranks = [name for name in names if is_rank(name)]
        self._restarts = restarts
        self._settle_s = max(settle_s, SETTLE_S)
        self._patience_s = patience_s
        self.cause: str | None = None
        self.why_not = ""
        self._failed_at: float | None = None
        self._save_until: float | None = None
        self._furthest = -1  # the newest version that was ever made
        self._in_vain = 0  # ends since it was made

    def next_step(
        self,
        fates: Mapping[str, Fate],
        now: float,
        made: int | None,
        hung: Collection[str] = (),
        done: bool = False,
    ) -> Step:
        """Returns what to do now. Called a few times a second; BEGIN, SAVE and FAIL come once.

        fates: of the workers, and of each service that has lost its node.
        made: the newest version that these processes have made; None before their first.
        hung: workers that the launcher ended because they were silent.
        done: whether the last step has closed: until then none may end, not even well.
        """
        if self.cause is None:
            failed = failed_worker(fates, hung) or (None if done else self._ended_early(fates))
            return self._judge_end(failed, fates, now, made, hung)
        if self._save_until is not None and now < self._save_until and self._may_save(fates, hung):
            return Step.WAIT
        if not self._restarts.is_due(now):
            return Step.WAIT
        self.cause = None
        self._failed_at = None
        self._save_until = None
        return Step.BEGIN

    def _ended_early(self, fates: Mapping[str, Fate]) -> str | None:
        """Returns who has ended well before the last step has closed. Ranks end one after the other."""
        ended = [name for name, fate in fates.items() if isinstance(fate, Ended)]
        others = [name for name in ended if name not in self._ranks]
        all_ranks = self._ranks if {*ended} >= {*self._ranks} else []
        return next(iter([*others, *all_ranks]), None)

    def _judge_end(
        self,
        failed: str | None,
        fates: Mapping[str, Fate],
        now: float,
        made: int | None,
        hung: Collection[str],
    ) -> Step:
        if failed is None:
            self._failed_at = None
            return Step.WAIT
        if any(is_alive(fates.get(name)) for name in hung):
            return Step.WAIT  # it was told to end: the others may have failed in its wake
        self._failed_at = self._failed_at or now
        fate = fates[failed]
        if now - self._failed_at < self._settle_s and not isinstance(fate, Lost):
            return Step.WAIT
        self.cause = failed
        is_first = self._furthest < 0 and made is None
        self._note_progress(made)
        self._restarts.ended(now)
        would_come_again = isinstance(fate, Ended) and failed not in hung and _is_final(fate.status, is_first)
        if would_come_again:
            return Step.FAIL
        if self._restarts.is_spent:
            self.why_not = self._restarts.spent("restarts.workers")
            return Step.FAIL
        if self._in_vain > self._restarts.most:
            self.why_not = f"they have begun again {self._restarts.most} times without a further step"
            return Step.FAIL
        if made is None or not self._may_save(fates, hung):
            return Step.WAIT
        self._save_until = now + self._patience_s
        return Step.SAVE

    def _note_progress(self, made: int | None) -> None:
        """Counts the ends since a version was made that had not been made before."""
        has_progressed = made is not None and made > self._furthest
        self._in_vain = 0 if has_progressed else self._in_vain + 1
        self._furthest = made if has_progressed else self._furthest

    def _may_save(self, fates: Mapping[str, Fate], hung: Collection[str]) -> bool:
        """Whether every rank lives or has ended as it was asked to, and one is not through yet."""
        ranks = [fates[name] for name in self._ranks]
        well = all(is_alive(fate) or (isinstance(fate, Ended) and fate.status == 0) for fate in ranks)
        return well and any(map(is_alive, ranks)) and not {*self._ranks} & {*hung}


def _is_final(status: int, is_first: bool) -> bool:
    """Whether the same would happen again: it is a refusal, or an error before the run's first step."""
    return status == REFUSED or (is_first and not is_by_signal(status))


@dataclass
class _Sign:
    mark: int | None  # time of the file, in nanoseconds
    seen_at: float


class Liveness:
    """Tells by the files of workers (`pipelinerl.heartbeat`) which of them have not changed for too long.

    Times are the launcher's own. That of a file only tells whether it has changed, as another machine may set
    it. timeout_s: the longest silence of a worker.
    """

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
